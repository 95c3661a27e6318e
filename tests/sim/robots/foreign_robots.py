"""MJCF files that were not written for this library."""

# Four legs of two joints, torque motors with a gear, no sensors, no floor, unnamed foot geoms, the base not first.
TORQUE_QUADRUPED = """
<mujoco model="foreign">
  <compiler angle="radian" autolimits="true"/>
  <default><joint damping="0.1" armature="0.01"/></default>
  <worldbody>
    <body name="base" pos="0 0 0.45">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.05" mass="5"/>
      {legs}
    </body>
  </worldbody>
  <actuator>{motors}</actuator>
</mujoco>
"""

_LEG = """
<body name="{n}_upper" pos="{x} {y} 0">
  <joint name="{n}_hip" axis="0 1 0" range="-1.5 1.5"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.5"/>
  <body name="{n}_lower" pos="0 0 -0.2">
    <joint name="{n}_shank" axis="0 1 0" range="-2 0"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.18" size="0.015" mass="0.2" contype="0" conaffinity="0"/>
    <geom type="sphere" pos="0 0 -0.2" size="0.025" mass="0.05"/>
  </body>
</body>
"""


def torque_quadruped(order: tuple[str, ...] = ("fl", "fr", "rl", "rr")) -> str:
    """A quadruped with torque motors, listed in another order than the joints."""
    all_places = {"fl": (0.2, 0.12), "fr": (0.2, -0.12), "rl": (-0.2, 0.12), "rr": (-0.2, -0.12)}
    places = {leg: all_places[leg] for leg in order}
    legs = "".join(_LEG.format(n=n, x=x, y=y) for n, (x, y) in places.items())
    motors = "".join(
        f'<motor name="{n}_{j}" joint="{n}_{j}" gear="2" ctrlrange="-10 10"/>' for j in ("hip", "shank") for n in places
    )
    return TORQUE_QUADRUPED.format(legs=legs, motors=motors)


FIXED_ARM = """
<mujoco model="arm">
  <worldbody>
    <geom name="floor" type="plane" size="1 1 0.1"/>
    <body name="link" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0"/>
      <geom name="arm_foot" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="1"/>
    </body>
  </worldbody>
  <actuator><position name="shoulder" joint="shoulder" kp="10"/></actuator>
</mujoco>
"""
