"""MuJoCo Warp on the CPU: too many contacts for its buffers are reported."""

import pytest
import torch

from st_rl.sim.backends import PhysicsCfg, WarpBackend

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("mujoco_warp")

NUM_ENVS, BALLS = 4, 3
BALL = '<body pos="{} 0 1"><freejoint/><geom type="sphere" size="0.1"/></body>'
SCENE = f"""<mujoco><worldbody><geom type="plane" size="5 5 1"/>
{"".join(BALL.format(place) for place in range(BALLS))}</worldbody></mujoco>"""


@pytest.mark.slow
@pytest.mark.parametrize(("max_contacts", "needed"), [(1, 3), (2, 3), (3, None)])
def test_warns_once_of_dropped_contacts_with_remedy(max_contacts, needed, caplog):
    physics = PhysicsCfg(max_contacts=max_contacts)
    backend = WarpBackend(mujoco.MjModel.from_xml_string(SCENE), NUM_ENVS, physics, "cpu")
    backend.step(1)
    backend.state_dict()
    assert "max_contacts" not in caplog.text, "all balls are in the air"
    on_the_ground = backend.qpos.clone()
    on_the_ground[:, 2::7] = 0.05
    second = torch.arange(NUM_ENVS) == 1
    backend.reset(second, on_the_ground, torch.zeros_like(backend.qvel))
    backend.step(2)
    assert "max_contacts" not in caplog.text, "nothing is read inside a rollout"
    for _ in range(2):
        backend.state_dict()
    messages = [record.getMessage() for record in caplog.records if "max_contacts" in record.getMessage()]
    if needed is None:
        assert messages == []
        return
    assert len(messages) == 1
    expected = f"contacts of 1 of {NUM_ENVS} robots overflowed and were dropped: raise physics.max_contacts "
    assert f"{expected}from {max_contacts} to at least {needed}" in messages[0]
