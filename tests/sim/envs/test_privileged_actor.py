"""The actor of a teacher reads the privileged observations of its student's critic."""

import pytest
import torch

from st_rl.sim.tasks import TASKS, make_task


@pytest.mark.parametrize("name", sorted(TASKS))
def test_privileged_actor_obs_equals_critic_obs_of_student(name):
    student, teacher = (
        make_task(name, 4, seed=1, **{"physics.num_threads": 1, "privileged_actor": value}) for value in (False, True)
    )
    assert list(teacher.obs_segments.items()) == list(student.critic_obs_segments.items())
    assert teacher.num_privileged_obs is None
    assert teacher.get_privileged_observations() is None
    assert teacher.num_obs == (student.num_privileged_obs or student.num_obs)
    assert "noise" not in teacher.random
    # Equal observations in equal states.
    teacher.backend.load_state_dict(student.backend.state_dict())
    for buffer in ("commands", "phase", "properties", "desired_heading", "row", "clip", "placement"):
        if buffer in student.buffers:
            teacher.buffers[buffer].copy_(student.buffers[buffer])
    clean = []
    for task in (student, teacher):
        task._read_state()
        task._update_errors()
        clean.append(task.compute_observation())
    torch.testing.assert_close(*clean)
    obs, _, _, infos = teacher.step(torch.zeros(4, teacher.num_actions))
    assert set(infos["observations"]) & {"policy", "critic"} == {"policy"}
    assert torch.equal(obs, teacher.compute_observation())
