"""`RolloutDataset`: recorded trajectories as batches of transitions."""

import logging
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset, Transition
from tests.storage.recordings import write_trajectory


def dataset(folder: Path | list[Path], num_envs: int = 1, **kwargs) -> RolloutDataset:
    """A dataset on the CPU; by default without waiting and without marking first frames."""
    settings = {"device": "cpu", "wait_seconds": 0, "mark_first_frame_done": False} | kwargs
    return RolloutDataset(folder, num_envs, **settings)  # pyright: ignore[reportArgumentType]


def order_by_age(folder: Path) -> None:
    """Set file times so that smaller indices are older."""
    for path in folder.glob("trajectory_*"):
        age = int(path.name.split("_")[1])
        os.utime(path, (1000 + age, 1000 + age))


def frames_played(data: RolloutDataset, env: int = 0) -> list[tuple[int, int]]:
    """(trajectory, frame) of every transition that one environment gets."""
    return [tuple(int(x) for x in batch.observation[env, :2]) for batch in data]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Three trajectories of 3, 5 (in two files) and 4 frames, all finished."""
    for index, lengths in enumerate(((3,), (2, 3), (4,))):
        write_trajectory(tmp_path, index, lengths)
    order_by_age(tmp_path)
    return tmp_path


EVERYTHING = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (2, 1), (2, 2), (2, 3)]


class TestPlaying:
    def test_every_frame_is_read_once_in_order_across_files(self, three):
        assert frames_played(dataset(three)) == EVERYTHING

    def test_fields_of_a_transition(self, three):
        batches = list(dataset(three))
        first, last = batches[0], batches[2]
        assert type(first) is Transition
        assert Transition is RolloutDataset.Transition
        assert {name: (tuple(value.shape), value.dtype) for name, value in first.items()} == {
            "observation": ((1, 3), torch.float32),
            "privileged_observation": ((1, 6), torch.float32),
            "action": ((1, 1), torch.float32),
            "reward": ((1,), torch.float32),
            "done": ((1,), torch.bool),
            "timeout": ((1,), torch.bool),
            "next_observation": ((1, 3), torch.float32),
            "next_privileged_observation": ((1, 6), torch.float32),
        }
        assert first.next_observation.tolist() == [[0, 1, 0]]
        assert first.next_privileged_observation.tolist() == [[0, 1, 0, 0, -1, 0]]
        assert last.done.tolist() == [True]
        # the last frame is followed by the first of the next trajectory
        assert last.next_observation.tolist() == [[1, 0, 0]]

    def test_dones_and_time_outs_equal_file(self, tmp_path):
        write_trajectory(tmp_path, 0, (3,), timeouts=np.array([False, False, True]))
        write_trajectory(tmp_path, 1, (2,))
        order_by_age(tmp_path)
        batches = list(dataset(tmp_path))
        assert [bool(b.done) for b in batches] == [False, False, True, False, True]
        assert [bool(b.timeout) for b in batches] == [False, False, True, False, False]

    def test_unfinished_trajectory_ends_with_time_out(self, tmp_path):
        write_trajectory(tmp_path, 0, (2, 1), ends=False)
        write_trajectory(tmp_path, 1, (2,), ends=False, timeouts=None)
        order_by_age(tmp_path)
        batches = list(dataset(tmp_path))
        assert [(bool(b.done), bool(b.timeout)) for b in batches[:3]] == [(False, False), (False, False), (True, True)]
        assert [(bool(b.done), bool(b.timeout)) for b in batches[3:5]] == [(False, False), (True, True)]

    def test_first_frame_is_marked_done_by_default(self, three):
        batches = list(dataset(three, mark_first_frame_done=True, starting_frame_range=[1, 2]))
        assert [tuple(b.observation[0, :2].int().tolist()) for b in batches] == [f for f in EVERYTHING if f[1] > 0]
        marked = [int(b.observation[0, 0]) for b in batches if b.done and not b.timeout]
        assert [bool(b.done) for b in batches] == [True, True, True, False, False, True, True, False, True]
        assert marked == [0, 0, 1, 1, 2, 2]

    def test_single_frame_trajectory_ends_with_time_out(self, tmp_path):
        write_trajectory(tmp_path, 0, (1,), ends=False)
        batch = dataset(tmp_path, mark_first_frame_done=True, dataset_loops=0).get_batch()
        assert batch.done.tolist() == [True]
        assert batch.timeout.tolist() == [True]

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("read_ahead", [False, True])
    def test_fill_transition_equals_filling_each_env(self, tmp_path, shuffle, read_ahead):
        for index in range(11):
            write_trajectory(tmp_path, index, (3, 1 + index % 4), ends=index % 3 > 0)
        order_by_age(tmp_path)
        settings = {"dataset_loops": 3, "random_shuffle_traj_order": shuffle, "read_ahead": read_ahead}
        together, one_by_one = (
            dataset(tmp_path, 4, starting_frame_range=[0, 3], mark_first_frame_done=True, **settings) for _ in range(2)
        )
        np.random.seed(3)
        expected = list(together)
        np.random.seed(3)
        one_by_one.reset()
        for batch in expected:
            buffer = one_by_one.get_buffer()
            for env in range(4):
                one_by_one._fill_transition_per_env(buffer, env)
            for name, value in batch.items():
                assert torch.equal(value, getattr(buffer, name)), name
        with pytest.raises(StopIteration):
            one_by_one.fill_transition(one_by_one.get_buffer())

    def test_override_of_fill_transition_per_env_takes_effect(self, three):
        class Scaled(RolloutDataset):
            def _fill_transition_per_env(self, buffer, env):
                super()._fill_transition_per_env(buffer, env)
                buffer.reward[env] = 10 * buffer.reward[env] + env

        settings = {"num_envs": 2, "device": "cpu", "wait_seconds": 0, "random_shuffle_traj_order": False}
        plain, scaled = RolloutDataset(three, **settings), Scaled(three, **settings)
        rewards = plain.get_batch().reward
        assert torch.equal(scaled.get_batch().reward, 10 * rewards + torch.arange(2).view_as(rewards))
        assert scaled.num_transitions_read == plain.num_transitions_read == 2

    def test_start_frame_beyond_the_end_becomes_zero(self, three):
        data = dataset(three, starting_frame_range=[4, 5])
        assert frames_played(data) == [(0, 0), (0, 1), (0, 2), (1, 4), (2, 0), (2, 1), (2, 2), (2, 3)]

    def test_start_frames_cover_the_range_and_nothing_else(self, tmp_path):
        write_trajectory(tmp_path, 0, (20,))
        data = dataset(tmp_path, 64, starting_frame_range=[2, 5])
        assert set(data.get_batch().observation[:, 1].tolist()) == {2.0, 3.0, 4.0}

    def test_several_steps_in_one_batch(self, three):
        batch = dataset(three, 2).get_batch(2)
        assert batch.observation.shape == (2, 2, 3)
        assert batch.observation[:, :, 1].tolist() == [[0, 0], [1, 1]]
        assert batch.get_leading_dims() == (2, 2)

    def test_time_outs_are_in_the_infos(self, three):
        transition, infos = dataset(three).get_transition_batch()
        assert list(infos) == ["time_outs"]
        assert torch.equal(infos["time_outs"], transition.timeout)

    def test_handler_attributes_describe_every_env(self, three):
        data = dataset(three, 2)
        data.get_batch(2)
        assert [Path(p).name for p in data.traj_identifiers] == ["trajectory_0", "trajectory_1"]
        assert data.traj_file_names[1] == ["traj_000000_000002.pickle", "traj_000002_000005.pickle"]
        assert data.traj_lengths.tolist() == [3, 5]
        assert data.traj_file_idxs.tolist() == [0, 1]
        assert data.traj_cursors.tolist() == [2, 2]
        assert data.traj_datas[1]["actions"].flatten().tolist() == [2, 3, 4]
        assert set(data.traj_datas[1]) >= {"observations", "actions", "rewards", "dones", "timeouts", "values"}
        assert data.unused_trajectory_idxs == [2]
        assert data._maintain_handler(0) is False

    def test_refresh_handlers_of_some_envs(self, three):
        data = dataset(three, 2)
        data.get_batch()
        data.reset([0])
        assert data.get_batch().observation[:, :2].tolist() == [[2, 0], [1, 1]]

    def test_traj_datas_are_empty_before_reset(self, tmp_path):
        data = dataset(tmp_path / "none", 2)
        assert data.traj_datas == [{}, {}]
        assert data.traj_cursors.tolist() == [0, 0]
        assert not (tmp_path / "none").exists()

    def test_refresh_handlers_of_some_envs_before_reset(self, three):
        data = dataset(three, 2)
        data.reset([1])
        assert data.traj_datas[0]["actions"].flatten().tolist() == [0, 1, 2]

    def test_outermost_metadata_is_used(self, three):
        (three / "a").mkdir()
        (three / "a" / "metadata.json").write_text('{"who": "inner"}')
        (three / "metadata.json").write_text('{"who": "outer"}')
        data = dataset(three)
        assert data.read_dataset_directory()
        assert data.metadata == {"who": "outer"}

    def test_frame_ranges_of_any_suffix(self):
        assert RolloutDataset.get_frame_range("traj_100_200.anything") == (100, 200)


class TestPasses:
    def test_dataset_loops_passes(self, three):
        data = dataset(three, dataset_loops=2)
        assert frames_played(data) == EVERYTHING * 2
        assert data.num_dataset_looped == 2

    def test_zero_loops_repeat_forever(self, three):
        data = dataset(three, dataset_loops=0)
        for _ in range(5 * len(EVERYTHING)):
            data.get_batch()
        assert data.num_dataset_looped == 5

    def test_only_the_finished_env_gets_another_trajectory(self, three):
        data = dataset(three, 2, dataset_loops=0)
        steps = [data.get_batch().observation[:, :2].int().tolist() for _ in range(10)]
        assert [step[1] for step in steps[:5]] == [[1, t] for t in range(5)], "cut although another one had run out"
        assert [step[0] for step in steps[:7]] == [[0, 0], [0, 1], [0, 2], [2, 0], [2, 1], [2, 2], [2, 3]]

    def test_new_trajectories_are_found_by_the_next_pass(self, three):
        data = dataset(three, dataset_loops=2)
        stream = iter(data)
        next(stream)
        write_trajectory(three, 7, (2,))
        played = [int(batch.observation[0, 0]) for batch in iter(stream.__next__, None)]
        assert played.count(7) == 2

    def test_fewer_trajectories_than_envs_are_used_twice(self, three, caplog):
        data = dataset(three, 8)
        with caplog.at_level(logging.WARNING, "st_rl"):
            batch = data.get_batch()
        assert batch.observation[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        assert "3 trajectories for 8 environments" in caplog.text
        assert len(list(data)) == 3  # the shortest has 3 frames; the next request ends the only pass

    def test_shuffling_keeps_every_trajectory(self, tmp_path):
        for index in range(30):
            write_trajectory(tmp_path, index, (2,))
        order_by_age(tmp_path)
        np.random.seed(0)
        orders = [[i for i, frame in frames_played(dataset(tmp_path, random_shuffle_traj_order=True)) if frame == 0]]
        orders.append(
            [i for i, frame in frames_played(dataset(tmp_path, random_shuffle_traj_order=True)) if frame == 0]
        )
        assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
        assert orders[0] != orders[1] != list(range(30))

    def test_folders_of_equal_age_are_in_natural_order(self, tmp_path):
        for index in (10, 2, 1):
            write_trajectory(tmp_path, index, (1,))
            os.utime(tmp_path / f"trajectory_{index}", (1000, 1000))
        assert [i for i, _ in frames_played(dataset(tmp_path))] == [1, 2, 10]

    def test_keep_latest_n_trajs(self, three):
        assert {i for i, _ in frames_played(dataset(three, keep_latest_n_trajs=2))} == {1, 2}


class TestFolders:
    def test_constructor_opens_no_files(self, tmp_path):
        data = dataset(tmp_path / "later")
        assert not (tmp_path / "later").exists()
        with pytest.raises(FileNotFoundError, match="0 of 1 trajectories"):
            data.get_batch()
        assert (tmp_path / "later").is_dir()

    def test_constructor_needs_neither_device_nor_folder(self):
        data = RolloutDataset("nowhere", 4)
        assert (data.device, data.num_envs, data.num_dataset_looped) == ("cuda", 4, 0)
        assert not Path("nowhere").exists()

    def test_several_folders_and_depths(self, tmp_path):
        write_trajectory(tmp_path / "a" / "collector", 0)
        write_trajectory(tmp_path / "b", 1)
        (tmp_path / "b" / "trajectory_5").mkdir()
        data = dataset([tmp_path / "a", tmp_path / "b"])
        assert {i for i, _ in frames_played(data)} == {0, 1}
        assert len(data.all_available_trajectory_dirs) == 2

    def test_first_metadata_is_used_and_several_warn_once(self, tmp_path, caplog):
        for index, name in enumerate(("a", "b")):
            write_trajectory(tmp_path / name, index)
            (tmp_path / name / "metadata.json").write_text(f'{{"z": {index}, "a": 1}}')
        data = dataset(tmp_path, dataset_loops=3)
        with caplog.at_level(logging.WARNING, "st_rl"):
            list(data)
        assert data.metadata == {"z": 0, "a": 1}
        assert list(data.metadata) == ["z", "a"]
        assert caplog.text.count("metadata.json") == 1

    def test_waits_for_enough_trajectories_and_logs_progress(self, tmp_path, caplog):
        write_trajectory(tmp_path, 0)

        def deliver():
            time.sleep(0.25)
            write_trajectory(tmp_path, 1)

        thread = threading.Thread(target=deliver)
        thread.start()
        data = dataset(tmp_path, keep_latest_n_trajs=2, wait_seconds=20, poll_seconds=0.05)
        with caplog.at_level(logging.INFO, "st_rl"):
            data.get_batch()
        thread.join()
        assert "1 of 2 found" in caplog.text
        assert 0.2 < data.waiting_seconds < 5

    def test_raises_after_wait_seconds(self, tmp_path):
        begin = time.monotonic()
        with pytest.raises(FileNotFoundError, match="st-rl collect"):
            dataset(tmp_path, wait_seconds=0.2, poll_seconds=5).get_batch()
        assert time.monotonic() - begin < 2

    def test_finished_only(self, tmp_path):
        write_trajectory(tmp_path, 0)
        write_trajectory(tmp_path, 1)
        (tmp_path / "trajectory_1" / "done").touch()
        assert {i for i, _ in frames_played(dataset(tmp_path, finished_only=True))} == {1}

    def test_max_policy_age_skips_old_trajectories(self, tmp_path):
        for index, iteration in enumerate((10, 40, 50, None)):
            stamp = None if iteration is None else (lambda n, i=iteration: np.full(n, i))
            write_trajectory(tmp_path, index, policy_iterations=stamp)
        order_by_age(tmp_path)
        data = dataset(tmp_path, max_policy_age=20, dataset_loops=2)
        data.current_iteration = 60
        assert [i for i, frame in frames_played(data) if frame == 0] == [1, 2, 3, 1, 2, 3]
        assert data.num_trajectories_refused == 1
        data.current_iteration = 100
        assert {i for i, _ in frames_played(data)} == {3}

    def test_only_old_trajectories_count_as_none(self, tmp_path):
        write_trajectory(tmp_path, 0, policy_iterations=lambda n: np.zeros(n))
        data = dataset(tmp_path, max_policy_age=5)
        data.current_iteration = 10
        with pytest.raises(FileNotFoundError):
            data.get_batch()


class TestContents:
    def test_missing_critic_observations_are_the_actor_observations(self, tmp_path):
        write_trajectory(tmp_path, 0, privileged_observations=None)
        for batch in dataset(tmp_path):
            assert torch.equal(batch.privileged_observation, batch.observation)
            assert torch.equal(batch.next_privileged_observation, batch.next_observation)

    def test_reads_files_of_older_savers(self, tmp_path):
        """Observations in a 1-tuple, no metadata, no file `done`, protocol 3."""
        folder = tmp_path / "trajectory_0"
        folder.mkdir()
        observations = np.arange(8, dtype=np.float32).reshape(4, 2)
        content = {
            "privileged_observations": 2 * observations,
            "actions": observations[:, :1],
            "rewards": observations[:, 1:],
            "dones": np.array([[0], [0], [0], [1]], dtype=np.uint8),
            "values": np.zeros((4, 1), dtype=np.float32),
            "timeouts": np.array([False, False, False, True]),
            "observations": (observations,),
        }
        (folder / "traj_000000_000004.pickle").write_bytes(pickle.dumps(content, protocol=3))
        batches = list(dataset(tmp_path))
        assert torch.cat([b.observation for b in batches]).numpy().tolist() == observations.tolist()
        assert [float(b.reward) for b in batches] == [1, 3, 5, 7]
        assert [bool(b.timeout) for b in batches] == [False, False, False, True]

    def test_components_are_assembled_in_segment_order(self, tmp_path):
        image = np.array([[0, 51], [102, 255]], dtype=np.uint8)
        parts = {"obs_depth": image, "obs_joints": np.ones((2, 1), np.float32), "obs_a": np.zeros((2, 1), np.float32)}
        write_trajectory(tmp_path, 0, (2,), observations=None, privileged_observations=None, **parts)
        (tmp_path / "metadata.json").write_text(
            '{"obs_segments": {"joints": 1, "depth": [1, 2], "a": 1},'
            ' "obs_disassemble_mapping": {"depth": "normalized_image"}}'
        )
        batches = list(dataset(tmp_path))
        expected = [[1, 0, 0.2, 0], [1, 0.4, 1, 0]]
        torch.testing.assert_close(torch.cat([b.observation for b in batches]), torch.tensor(expected))

    def test_assembling_replaces_the_components(self, tmp_path):
        data = dataset(tmp_path)
        data.metadata = {"obs_segments": {"b": 1, "a": 2}, "obs_disassemble_mapping": {"a": "normalized_image"}}
        content = {"obs_a": torch.tensor([[0, 255]], dtype=torch.uint8), "obs_b": torch.ones(1, 1), "actions": 3}
        assert data.assemble_obs_components(content) is content
        assert list(content) == ["actions", "observations"]
        assert content["observations"].tolist() == [[1.0, 0.0, 1.0]]

    def test_overridden_assemble_obs_components_is_used(self, tmp_path):
        class Doubled(RolloutDataset):
            def assemble_obs_components(self, traj_data):
                traj_data = super().assemble_obs_components(traj_data)
                return traj_data | {"observations": 2 * traj_data["observations"]}

        write_trajectory(tmp_path, 0, (2,), observations=None, obs_a=np.array([[1.0], [3.0]], np.float32))
        (tmp_path / "metadata.json").write_text('{"obs_segments": {"a": 1}, "obs_disassemble_mapping": {}}')
        data = Doubled(tmp_path, 1, device="cpu", wait_seconds=0)
        assert [float(batch.observation) for batch in data] == [2.0, 6.0]

    def test_all_frames_once(self, three):
        data = dataset(three, 2)
        data.get_batch()
        place = data.traj_cursors.copy()
        found = torch.cat([frames["observations"][:, :2] for frames in data.all_frames()])
        assert [tuple(row) for row in found.int().tolist()] == EVERYTHING
        assert (data.traj_cursors == place).all()


class TestDamage:
    def damage(self, path: Path, how: str) -> None:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "foreign": b"not a pickle"}[how])

    @pytest.mark.parametrize("how", ["empty", "cut", "foreign"])
    def test_damaged_file_is_skipped_with_one_warning_and_counted(self, three, caplog, how):
        path = three / "trajectory_0" / "traj_000000_000003.pickle"
        self.damage(path, how)
        data = dataset(three, dataset_loops=2)
        with caplog.at_level(logging.WARNING, "st_rl"):
            assert frames_played(data) == EVERYTHING[3:] * 2
        assert data.num_files_skipped == 1
        assert caplog.text.count(str(path)) == 1

    def test_gap_ends_the_episode(self, tmp_path):
        paths = write_trajectory(tmp_path, 0, (2, 2, 2))
        self.damage(paths[1], "cut")
        batches = list(dataset(tmp_path))
        assert [int(b.observation[0, 1]) for b in batches] == [0, 1, 4, 5]
        assert [bool(b.done) for b in batches] == [False, True, False, True]
        assert [bool(b.timeout) for b in batches] == [False, True, False, False]

    def test_missing_first_file_starts_at_the_second(self, tmp_path):
        write_trajectory(tmp_path, 0, (2, 2))[0].unlink()
        assert frames_played(dataset(tmp_path)) == [(0, 2), (0, 3)]

    def test_skips_file_of_another_width(self, three):
        write_trajectory(three, 9, (2,), observations=lambda n: np.zeros((n, 5), np.float32))
        os.utime(three / "trajectory_9", (2000, 2000))
        data = dataset(three)
        assert frames_played(data) == EVERYTHING
        assert data.num_files_skipped == 1

    @pytest.mark.parametrize("name", ["rewards", "dones", "timeouts"])
    @pytest.mark.parametrize("width", [0, 2])
    def test_skips_file_with_wide_rewards_or_flags(self, three, name, width):
        extra: dict[str, Any] = {name: np.zeros((2, width))}
        write_trajectory(three, 9, (2,), **extra)
        os.utime(three / "trajectory_9", (500, 500))
        assert frames_played(dataset(three)) == EVERYTHING

    def test_files_of_no_frames_are_skipped(self, tmp_path):
        write_trajectory(tmp_path, 0, (2, 0, 2))
        assert frames_played(dataset(tmp_path)) == [(0, 0), (0, 1), (0, 2), (0, 3)]

    def test_deleted_trajectory_is_not_reported_as_damaged(self, three, caplog):
        data = dataset(three, read_ahead=False)
        stream = iter(data)
        next(stream)
        (three / "trajectory_2" / "traj_000000_000004.pickle").unlink()
        with caplog.at_level(logging.WARNING, "st_rl"):
            played = [int(batch.observation[0, 0]) for batch in iter(stream.__next__, None)]
        assert set(played) == {0, 1}
        assert data.num_files_skipped == 0
        assert caplog.text == ""

    @pytest.mark.parametrize("ahead", [False, True])
    def test_replaced_trajectory_ends_the_episode(self, tmp_path, ahead):
        """A writer that keeps successes only deletes failures and reuses their index."""
        write_trajectory(tmp_path, 0, (2, 2, 2), tag=1.0)
        data = dataset(tmp_path, dataset_loops=2, read_ahead=ahead)
        data.get_batch()
        for path in sorted(tmp_path.rglob("traj_*")):
            path.unlink()
        write_trajectory(tmp_path, 0, (2, 2, 2), tag=2.0)
        second, third = data.get_batch(), data.get_batch()
        assert (second.observation[0, 1:].tolist(), second.done.item(), second.timeout.item()) == ([1, 1], True, True)
        assert third.observation[0, 1:].tolist() == [0, 2]
        assert data.num_files_skipped == 0

    def test_error_lists_unreadable_files(self, three):
        for path in three.rglob("*.pickle"):
            self.damage(path, "foreign")
        with pytest.raises(RuntimeError, match=r"trajectory_0.*st-rl dataset repair"):
            dataset(three).get_batch()


class TestDataLoader:
    def test_data_loader_without_workers(self, three):
        loader = DataLoader(dataset(three), batch_size=None)
        for _ in range(2):
            assert [tuple(batch.observation[0, :2].int().tolist()) for batch in loader] == EVERYTHING

    def test_data_loader_batches(self, three):
        shapes = [tuple(batch.observation.shape) for batch in DataLoader(dataset(three), batch_size=5)]
        assert shapes == [(5, 1, 3), (5, 1, 3), (2, 1, 3)]

    @pytest.mark.parametrize("used_before", [False, True])
    def test_data_loader_workers_split_the_trajectories(self, three, used_before):
        data = dataset(three)
        if used_before:
            data.get_batch()
        played = [tuple(batch.observation[0, :2].int().tolist()) for batch in DataLoader(data, None, num_workers=2)]
        assert sorted(played) == EVERYTHING

    def test_dataset_can_be_pickled(self, three):
        data = dataset(three)
        data.get_batch()
        copy = pickle.loads(pickle.dumps(data))
        assert frames_played(copy) == EVERYTHING
