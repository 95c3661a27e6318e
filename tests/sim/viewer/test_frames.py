import numpy as np
import torch

from st_rl.sim.tasks import make_task
from st_rl.sim.viewer.frames import FrameLayout, SharedFrames
from st_rl.sim.viewer.page import columns_of


def test_frame_holds_states_and_weighted_rewards_of_the_first_robots():
    task = make_task("quadruped-walk", num_envs=3)
    layout = FrameLayout.of_task(task, num_robots=2)
    row, pack = torch.zeros(layout.width), layout.packer(task)
    task.step_observers.append(lambda outcome: pack(row, outcome.log))
    _, _, _, infos = task.step(torch.full((3, 12), 0.2))
    frame = layout.unpack(row.numpy())
    for name in ("qpos", "qvel", "joint_force"):
        np.testing.assert_array_equal(getattr(frame, name), vars(task.backend)[name][:2].numpy())
    np.testing.assert_array_equal(frame.commands, task.commands[:2].numpy())
    np.testing.assert_array_equal(frame.actions, task.actions[:2].numpy())
    expected = [float(infos["log"][f"Reward/{name}"]) for name in layout.reward_names]
    np.testing.assert_allclose(frame.rewards, expected)


def test_layout_of_a_task_without_commands_and_free_joint():
    layout = FrameLayout.of_task(make_task("balance", num_envs=20))
    assert (layout.num_robots, layout.has_commands, layout.base_qpos) == (16, False, None)
    assert layout.unpack(np.zeros(layout.width)).commands.shape == (16, 0)


def test_reader_gets_each_write_once_and_never_half_of_one(tmp_path):
    writer = SharedFrames(tmp_path / "frames.bin", width=3, capacity=2, create=True)
    reader = SharedFrames(tmp_path / "frames.bin", width=3, capacity=2)
    assert reader.read() is None
    writer.write(np.array([[1.0, 2.0, 3.0]], dtype=np.float32))
    sequence, rows = reader.read() or (0, np.empty(0))
    np.testing.assert_array_equal(rows, [[1.0, 2.0, 3.0]])
    assert reader.read(sequence) is None
    writer._header[0] += 1  # as in the middle of a write
    assert reader.read(sequence) is None


def test_watched_flag_and_iteration_cross_the_file(tmp_path):
    training = SharedFrames(tmp_path / "frames.bin", 1, 1, create=True)
    page = SharedFrames(tmp_path / "frames.bin", 1, 1)
    assert not training.is_watched
    page.is_watched, training.iteration = True, 7
    assert training.is_watched
    assert page.iteration == 7


def test_plots_get_columns_of_two_rows_or_more():
    rows = [np.array([float(step), 10.0 * step]) for step in range(2, 6)]
    times, values = columns_of(rows, 2)
    assert times.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert values.tolist() == [20.0, 30.0, 40.0, 50.0]
    assert columns_of(rows[:1], 2).shape == columns_of([], 2).shape == (2, 2)
