"""`DemonstrationSaver`: files hold the transitions of the environment, and a dataset reads them back."""

import errno
import gc
import json
import logging
import math
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from st_rl.modules import ActorCriticRecurrent, EmpiricalNormalization
from st_rl.runners import DemonstrationSaver, build_runner
from st_rl.storage.rollout_files import frames as frame_files
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from tests.fakes import ClientEnv, EchoEnv, LegacyEnv, TensorDictEnv
from tests.storage.recordings import EchoPolicy, RecordingEnv, record


def totals(folder: Path) -> tuple[int, int]:
    metadata = json.loads((folder / "metadata.json").read_text())
    return metadata["total_timesteps"], metadata["total_trajectories"]


def on_disk(folder: Path) -> tuple[int, int]:
    """Number of frames in all files and of trajectories that end with a done, counted without the library."""
    frames = finished = 0
    for trajectory in folder.glob("trajectory_*"):
        files = sorted(trajectory.glob("traj_*"))
        if not files:
            continue
        frames += sum(len(load(path)["actions"]) for path in files)
        finished += int(load(files[-1])["dones"][-1, 0])
    return frames, finished


def load(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return dict(np.load(path, allow_pickle=False))
    return pickle.loads(path.read_bytes())


def read_back(folder: Path, **kwargs: Any) -> list[dict[str, np.ndarray]]:
    """Trajectories of a dataset, each cut after its done."""
    settings = {"num_envs": 1, "device": "cpu", "wait_seconds": 0, "mark_first_frame_done": False} | kwargs
    found, piece = [], []
    for batch in RolloutDataset(folder, **settings):
        piece.append({name: getattr(batch, name)[0].numpy() for name in batch._fields})
        if piece[-1]["done"]:
            found.append({name: np.stack([step[name] for step in piece]) for name in piece[0]})
            piece = []
    assert not piece
    return found


def by_first_observation(trajectories: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    return sorted(trajectories, key=lambda t: tuple(t["observation"][0]))


def assert_same_trajectories(read, given, tolerance: float = 0.0) -> None:
    assert len(read) == len(given)
    for ours, theirs in zip(by_first_observation(read), by_first_observation(given)):
        for name in ("observation", "privileged_observation", "action", "reward"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance, err_msg=name)
        # an unfinished episode at the end of the recording ends with a time-out
        assert (ours["done"] == np.arange(len(ours["done"])).__eq__(len(ours["done"]) - 1)).all()
        ended = bool(theirs["done"][-1])
        assert bool(ours["timeout"][-1]) == (bool(theirs["timeout"][-1]) if ended else True)
        np.testing.assert_array_equal(ours["next_observation"][:-1], ours["observation"][1:])


class ReusingEnv(RecordingEnv):
    """Writes every observation into the same buffer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.memory: dict[str, torch.Tensor] = {}

    def reuse(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self.memory.setdefault(name, value.clone()).copy_(value)

    def get_observations(self) -> Any:
        obs, extras = super().get_observations()
        groups = {name: self.reuse(name, group) for name, group in extras["observations"].items()}
        return self.reuse("obs", obs), {**extras, "observations": groups}

    def step(self, actions: torch.Tensor) -> Any:
        _, rewards, dones, infos = super().step(actions)
        obs, extras = self.get_observations()
        return obs, rewards, dones, {**infos, **extras}


class TestRoundTrip:
    @pytest.mark.parametrize("file_format", ["pickle", "npz"])
    @pytest.mark.parametrize("num_critic", [None, 7])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_transitions_equal_environment_steps(self, tmp_path, file_format, num_critic, shuffle):
        env = RecordingEnv(num_envs=5, num_privileged_obs=num_critic, termination_prob=0.1, stagger=True)
        record(tmp_path, env, file_format=file_format)
        assert_same_trajectories(read_back(tmp_path, random_shuffle_traj_order=shuffle), env.trajectories())

    def test_loops_repeat_the_same_trajectories(self, tmp_path):
        env = RecordingEnv(num_envs=3, termination_prob=0.2)
        record(tmp_path, env)
        assert_same_trajectories(read_back(tmp_path, dataset_loops=3), env.trajectories() * 3)

    def test_without_time_outs(self, tmp_path):
        env = RecordingEnv(num_envs=3, time_outs=False, episode_length=5)
        record(tmp_path, env)
        assert not any("timeouts" in load(path) for path in tmp_path.rglob("traj_*"))
        finished = [t for t in read_back(tmp_path) if len(t["done"]) == 5]
        assert finished
        assert not any(t["timeout"].any() for t in finished)

    def test_compressed_components(self, tmp_path):
        env = RecordingEnv(num_envs=4, num_obs=6, termination_prob=0.1)
        env.obs_segments = OrderedDict(target=2, camera=(2, 2))
        record(tmp_path, env, obs_disassemble_mapping={"camera": "normalized_image"})
        content = load(next(tmp_path.rglob("traj_*.pickle")))
        assert content["obs_camera"].dtype == np.uint8
        assert content["obs_camera"].shape[1:] == (4,)
        assert content["obs_target"].dtype == np.float32
        assert "observations" not in content
        given = env.trajectories()
        for trajectory in given:
            trajectory["observation"][:, 2:] = np.clip(trajectory["observation"][:, 2:], 0, 1)
        read = [{**t, "privileged_observation": t["observation"]} for t in read_back(tmp_path)]
        given = [{**t, "privileged_observation": t["observation"]} for t in given]
        assert_same_trajectories(read, given, tolerance=1 / 255 + 1e-6)

    def test_components_without_compression_are_exact(self, tmp_path):
        env = RecordingEnv(num_envs=2)
        record(tmp_path, env, obs_disassemble_mapping={})
        assert {"obs_target", "obs_noise"} <= set(load(next(tmp_path.rglob("traj_*.pickle"))))
        assert_same_trajectories(read_back(tmp_path), env.trajectories())

    @pytest.mark.parametrize("make", [ClientEnv, LegacyEnv, TensorDictEnv])
    def test_accepts_every_environment_interface(self, tmp_path, make):
        env = make(num_envs=4, num_privileged_obs=10)
        saver = DemonstrationSaver(env, EchoPolicy(env.num_actions), tmp_path, 8, min_timesteps=60, min_episodes=2)
        saver.collect_and_save()
        content = load(next(tmp_path.rglob("traj_*.pickle")))
        assert content["privileged_observations"].shape[1] == 10
        assert totals(tmp_path) == on_disk(tmp_path)
        assert len(read_back(tmp_path)) >= 4


class TestFiles:
    def test_file_contents(self, tmp_path):
        env = RecordingEnv(num_envs=2, num_privileged_obs=7)
        record(tmp_path, env)
        path = tmp_path / "trajectory_0" / "traj_000000_000007.pickle"
        content = load(path)
        assert {name: (array.shape, str(array.dtype)) for name, array in content.items()} == {
            "observations": ((7, 4), "float32"),
            "privileged_observations": ((7, 7), "float32"),
            "actions": ((7, 2), "float32"),
            "rewards": ((7, 1), "float32"),
            "dones": ((7, 1), "uint8"),
            "values": ((7, 1), "float32"),
            "timeouts": ((7,), "bool"),
        }
        assert not content["values"].any()
        assert (tmp_path / "trajectory_0" / "traj_000007_000010.pickle").is_file()
        assert (tmp_path / "trajectory_0" / "done").read_bytes() == b""

    def test_policy_iteration_is_recorded_with_every_frame(self, tmp_path):
        saver = DemonstrationSaver(EchoEnv(num_envs=2), EchoPolicy(), tmp_path, 5, min_timesteps=20, min_episodes=0)
        saver.policy_iteration = 300
        saver.collect_and_save()
        content = load(next(tmp_path.rglob("traj_*.pickle")))
        assert content["policy_iterations"].tolist() == [300] * len(content["actions"])

    def test_metadata(self, tmp_path):
        env = RecordingEnv(num_envs=2)
        saver = DemonstrationSaver(env, EchoPolicy(), tmp_path, 5, min_timesteps=30, min_episodes=1)
        saver.collect_and_save({"algorithm": {"gamma": 0.9}})
        text = (tmp_path / "metadata.json").read_text()
        metadata = json.loads(text)
        assert text.startswith('{\n    "config"')
        assert metadata["config"] == {"algorithm": {"gamma": 0.9}}
        assert (metadata["env"], metadata["policy"]) == ("RecordingEnv", "EchoPolicy")
        settings = ("rollout_storage_length", "success_traj_only", "min_timesteps", "min_episodes", "use_critic_obs")
        assert [metadata[key] for key in settings] == [5, False, 30, 1, False]
        assert metadata["success_rule"] == "timeout"
        assert "obs_segments" not in metadata
        assert (metadata["total_timesteps"], metadata["total_trajectories"]) == (30, 2) == on_disk(tmp_path)

    def test_segment_order_is_kept(self, tmp_path):
        env = RecordingEnv(num_envs=1, num_obs=6)
        env.obs_segments = OrderedDict(zebra=2, apple=(1, 3), middle=1)
        record(tmp_path, env, obs_disassemble_mapping={"apple": "normalized_image"})
        metadata = json.loads((tmp_path / "metadata.json").read_text())
        assert list(metadata["obs_segments"].items()) == [("zebra", 2), ("apple", [1, 3]), ("middle", 1)]
        assert metadata["obs_disassemble_mapping"] == {"apple": "normalized_image"}

    def test_empty_folders_are_removed(self, tmp_path):
        env = RecordingEnv(num_envs=3, episode_length=5)
        record(tmp_path, env, rollout_storage_length=5, min_timesteps=30)
        assert all(list(folder.glob("traj_*")) for folder in tmp_path.glob("trajectory_*"))
        assert not list(tmp_path.rglob(".*"))


class TestExtending:
    def test_indices_continue_and_empty_folders_are_reused(self, tmp_path):
        record(tmp_path, RecordingEnv(num_envs=2))
        before = {p.name for p in tmp_path.glob("trajectory_*")}
        largest = max(int(name.split("_")[1]) for name in before)
        (tmp_path / f"trajectory_{largest + 40}").mkdir()
        steps, finished = totals(tmp_path)
        saver = DemonstrationSaver(EchoEnv(num_envs=3), EchoPolicy(), tmp_path, 4)
        saver.init_traj_handlers()
        assert saver.traj_idxs.tolist() == [largest + 40, largest + 41, largest + 42]
        assert (saver.total_timesteps, saver.total_traj_completed) == (steps, finished)
        assert saver.dumped_traj_lengths.tolist() == [0, 0, 0]
        saver.close()
        assert {p.name for p in tmp_path.glob("trajectory_*")} == before

    @pytest.mark.parametrize("text", [None, "{", '{"total_timesteps": null}'])
    def test_unreadable_totals_are_counted_again(self, tmp_path, text):
        record(tmp_path, RecordingEnv(num_envs=3, termination_prob=0.1))
        (tmp_path / "metadata.json").unlink()
        if text is not None:
            (tmp_path / "metadata.json").write_text(text)
        record(tmp_path, RecordingEnv(num_envs=3, seed=1), min_timesteps=100)
        assert totals(tmp_path) == on_disk(tmp_path)

    def test_rejects_folder_with_other_components(self, tmp_path):
        kinds = {"noise": "normalized_image"}
        env = RecordingEnv(num_envs=2)
        record(tmp_path, env, obs_disassemble_mapping=kinds)
        before = (tmp_path / "metadata.json").read_text()
        turned = RecordingEnv(num_envs=2)
        turned.obs_segments = OrderedDict(reversed(turned.obs_segments.items()))
        for other, mapping in ((env, None), (env, {}), (turned, kinds)):
            with pytest.raises(ValueError, match="another folder"):
                record(tmp_path, other, obs_disassemble_mapping=mapping)
        assert (tmp_path / "metadata.json").read_text() == before
        record(tmp_path, env, obs_disassemble_mapping=kinds, min_timesteps=100)
        assert totals(tmp_path) == on_disk(tmp_path)

    def test_rejects_folder_of_other_environment_unmodified(self, tmp_path):
        record(tmp_path, RecordingEnv(num_envs=2))
        before = (tmp_path / "metadata.json").read_text()
        other = EchoEnv(num_envs=2, num_obs=7, num_actions=2)
        with pytest.raises(ValueError, match="those of this environment have 7: collect into another folder"):
            record(tmp_path, other, min_timesteps=1000)
        assert (tmp_path / "metadata.json").read_text() == before

    def test_totals_of_two_collections_add_up(self, tmp_path):
        for seed in range(2):
            record(tmp_path, RecordingEnv(num_envs=3, seed=seed, termination_prob=0.1), min_timesteps=60 * (seed + 1))
            assert totals(tmp_path) == on_disk(tmp_path)
        assert totals(tmp_path)[0] >= 120
        assert DemonstrationSaver(EchoEnv(), EchoPolicy(), tmp_path).timesteps_before == 0
        assert record(tmp_path, RecordingEnv(), min_timesteps=0, min_episodes=0).timesteps_before == totals(tmp_path)[0]

    def test_two_writers_in_one_folder_never_share_a_trajectory(self, tmp_path, caplog):
        savers = [DemonstrationSaver(RecordingEnv(num_envs=3, seed=s), EchoPolicy(), tmp_path, 5) for s in range(2)]
        with caplog.at_level(logging.WARNING, "st_rl"):
            for saver in savers:
                saver.init_traj_handlers()
        assert "is being written to by" in caplog.text
        assert savers[0].writer_id != savers[1].writer_id
        for _ in range(25):
            for saver in savers:
                saver.collect_step(0)
                assert not set(savers[0].traj_idxs.tolist()) & set(savers[1].traj_idxs.tolist())
        for saver in savers:
            saver.close()
        given = [t for saver in savers for t in saver.env.trajectories()]
        assert_same_trajectories(read_back(tmp_path), given)

    def test_one_saver_can_collect_twice(self, tmp_path):
        env = RecordingEnv(num_envs=2)
        saver = record(tmp_path, env)
        saver.min_timesteps *= 2
        saver.collect_and_save()
        assert totals(tmp_path) == on_disk(tmp_path)
        assert len(env.seen) * 2 == on_disk(tmp_path)[0]


class TwoObservationPolicy:
    """The documented interface: both methods take the actor and the critic observation."""

    def __init__(self):
        self.inputs = []

    def act(self, obs, critic_obs):
        self.inputs.append((obs.clone(), critic_obs.clone()))
        return obs[:, :2]

    act_inference = act

    def reset(self, dones): ...


@pytest.mark.parametrize("sample", [False, True])
def test_policy_with_two_arguments_gets_both_observations(tmp_path, sample):
    env, policy = RecordingEnv(num_envs=2, num_privileged_obs=6), TwoObservationPolicy()
    normalizers = {
        "obs_normalizer": EmpiricalNormalization(4).eval(),
        "critic_obs_normalizer": EmpiricalNormalization(6).eval(),
    }
    normalizers["critic_obs_normalizer"]._mean += 1.0
    record(tmp_path, env, policy=policy, demo_by_sample=sample, **normalizers)
    scale = 1 / (1 + normalizers["obs_normalizer"].eps)
    for (obs, critic_obs), step in zip(policy.inputs, env.seen, strict=True):
        np.testing.assert_allclose(obs, scale * step["observation"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(critic_obs, scale * (step["privileged_observation"] - 1), rtol=1e-4, atol=1e-5)


class TestSuccess:
    def collect(self, folder, rule="timeout", seed=0, env=None, **kwargs):
        env = env or RecordingEnv(num_envs=4, termination_prob=0.1, episode_length=6, seed=seed, **kwargs)
        saver = record(folder, env, success_traj_only=True, success_rule=rule, min_timesteps=100, min_episodes=5)
        finished = [t for t in env.trajectories() if t["done"][-1]]
        kept = [t for t in read_back(folder) if (folder and t["done"][-1])]
        return saver, finished, kept

    @pytest.mark.parametrize("rule", ["timeout", "termination"])
    def test_failures_are_deleted_and_not_counted(self, tmp_path, rule, caplog):
        with caplog.at_level(logging.INFO, "st_rl"):
            saver, finished, _ = self.collect(tmp_path, rule)
        assert "keeping episodes that" in caplog.text
        good = [t for t in finished if bool(t["timeout"][-1]) == (rule == "timeout")]
        assert 0 < len(good) < len(finished)
        assert saver.total_traj_completed == len(good) == len(list(tmp_path.glob("trajectory_*/done")))
        assert totals(tmp_path) == on_disk(tmp_path)
        assert json.loads((tmp_path / "metadata.json").read_text())["success_rule"] == rule

    def test_rate_counts_deleted_steps_and_is_never_negative(self, tmp_path):
        env = RecordingEnv(num_envs=4, termination_prob=0.0, episode_length=16)
        settings = {"success_traj_only": True, "success_rule": "termination"}
        saver = DemonstrationSaver(env, EchoPolicy(), tmp_path, rollout_storage_length=7, **settings)
        lines = []
        saver.on_progress = lambda fraction, line: (lines.append(line), len(lines) == 6 and saver.request_stop())
        saver.collect_and_save()
        rates = [float(line.split(" trajectories, ")[1].split(" steps/s")[0].replace(",", "")) for line in lines]
        assert len(rates) == 6
        assert min(rates) > 0

    def test_indices_of_failures_are_reused(self, tmp_path):
        self.collect(tmp_path)
        indices = sorted(int(p.name.split("_")[1]) for p in tmp_path.glob("trajectory_*"))
        assert max(indices) < len(list(tmp_path.glob("trajectory_*/done"))) + 4

    def test_success_of_infos_overrides_success_rule(self, tmp_path):
        class SuccessReportingEnv(RecordingEnv):
            def step(self, actions):
                obs, rewards, dones, infos = super().step(actions)
                infos["success"] = torch.arange(self.num_envs) == 2
                return obs, rewards, dones, infos

        env = SuccessReportingEnv(num_envs=4, termination_prob=0.3, episode_length=6)
        saver, _, _ = self.collect(tmp_path, env=env)
        per_robot = [np.stack([s["done"] for s in env.seen])[:, i].sum() for i in range(4)]
        assert saver.total_traj_completed == per_robot[2]

    def test_unknown_success_keeps_all_with_warning(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING, "st_rl"):
            saver, finished, _ = self.collect(tmp_path, time_outs=False)
        assert saver.total_traj_completed == len(finished)
        assert caplog.text.count("success_traj_only has no effect") == 1

    def test_rejects_unknown_rules_formats_and_components(self, tmp_path):
        for wrong in ({"success_rule": "luck"}, {"file_format": "csv"}, {"obs_disassemble_mapping": {"nose": "x"}}):
            with pytest.raises(ValueError, match=r"luck|csv|nose"):
                DemonstrationSaver(EchoEnv(), EchoPolicy(), tmp_path, **wrong)


class TestPolicy:
    @pytest.mark.parametrize("use_critic_obs", [False, True])
    @pytest.mark.parametrize("demo_by_sample", [False, True])
    def test_observation_and_action_settings(self, tmp_path, use_critic_obs, demo_by_sample):
        env, policy = RecordingEnv(num_envs=2, num_privileged_obs=7), EchoPolicy()
        record(tmp_path, env, policy=policy, use_critic_obs=use_critic_obs, demo_by_sample=demo_by_sample)
        assert set(policy.calls) == {"act" if demo_by_sample else "act_inference"}
        key = "privileged_observation" if use_critic_obs else "observation"
        np.testing.assert_array_equal(policy.observations[3].numpy(), env.seen[3][key])

    def test_policy_gets_normalized_and_files_hold_raw_observations(self, tmp_path):
        env, policy = RecordingEnv(num_envs=2, num_privileged_obs=7), EchoPolicy()
        normalizer = EmpiricalNormalization(7)
        normalizer.update(torch.randn(100, 7) * 3 + 1)
        count = int(normalizer.count)
        record(tmp_path, env, policy=policy, use_critic_obs=True, critic_obs_normalizer=normalizer)
        raw = torch.from_numpy(env.seen[5]["privileged_observation"])
        expected = (raw - normalizer.mean) / (normalizer.std + 1e-2)
        torch.testing.assert_close(policy.observations[5], expected)
        assert int(normalizer.count) == count
        assert_same_trajectories(read_back(tmp_path), env.trajectories())

    def test_hidden_states_are_cleared_after_episodes(self, tmp_path):
        env, policy = RecordingEnv(num_envs=3, termination_prob=0.3, dones_dtype=torch.int64), EchoPolicy()
        record(tmp_path, env, policy=policy)
        ends = [torch.from_numpy(step["done"]) for step in env.seen if step["done"].any()]
        assert [reset.tolist() for reset in policy.resets] == [[True] * 3] + [end.tolist() for end in ends]
        assert all(reset.dtype == torch.bool for reset in policy.resets)

    def test_recurrent_policy_of_the_library(self, tmp_path):
        env = RecordingEnv(num_envs=3, termination_prob=0.2)
        policy = ActorCriticRecurrent(4, 4, 2, rnn_hidden_size=8, actor_hidden_dims=[8], critic_hidden_dims=[8])
        record(tmp_path, env, policy=policy)
        assert_same_trajectories(read_back(tmp_path), env.trajectories())

    def test_environment_that_overwrites_its_observation(self, tmp_path):
        class InPlace(RecordingEnv):
            def step(self, actions):
                shown = self.obs
                obs, rewards, dones, infos = super().step(actions)
                shown.copy_(obs)
                self.obs = shown
                return shown, rewards, dones, infos

        env = InPlace(num_envs=2)
        record(tmp_path, env)
        content = load(tmp_path / "trajectory_0" / "traj_000000_000007.pickle")
        np.testing.assert_array_equal(content["observations"], [step["observation"][0] for step in env.seen[:7]])


class TestManualStepping:
    def test_stepping_without_collect_and_save(self, tmp_path):
        env = RecordingEnv(num_envs=2, termination_prob=0.1)
        saver = DemonstrationSaver(env, EchoPolicy(), tmp_path / "new", rollout_storage_length=6)
        assert not (tmp_path / "new").exists()
        saver.init_traj_handlers()
        assert (tmp_path / "new" / "metadata.json").is_file()
        assert saver.traj_idxs.tolist() == [0, 1]
        for step_i in range(16):
            *_, dones, infos, next_obs, _ = saver.get_transition()
            saver.add_transition(step_i, infos)
            saver.policy_reset(dones)
            assert torch.equal(saver.obs, next_obs)
            saver.print_log()
        assert saver.total_timesteps == 2 * 12
        assert saver.rollout_storage.step == 4
        saver.close()
        saver.close()
        assert totals(tmp_path / "new") == on_disk(tmp_path / "new")
        assert_same_trajectories(read_back(tmp_path / "new"), env.trajectories())

    def test_own_transition_can_be_stored(self, tmp_path):
        env = RecordingEnv(num_envs=2)
        saver = DemonstrationSaver(env, EchoPolicy(), tmp_path, rollout_storage_length=6)
        saver.init_traj_handlers()
        for step_i in range(4):
            actions = saver.get_policy_actions() + 1.0
            _, rewards, dones, infos = env.step(actions)
            saver.build_transition(step_i, actions, rewards, dones, infos)
            saver.add_transition(step_i, infos)
        with pytest.raises(RuntimeError, match=r"get_transition\(\) first"):
            saver.add_transition(4, {})
        saver.close()
        assert_same_trajectories(read_back(tmp_path), env.trajectories())

    def test_overridden_get_transition_is_saved(self, tmp_path):
        """Also if the environment writes its observations into one buffer."""

        class Overridden(DemonstrationSaver):
            def get_transition(self):
                actions = self.get_policy_actions()
                obs, rewards, dones, infos = self.env.step(actions)
                shown.append(obs + 1.0)
                return actions, 2.0 * rewards, dones, infos, shown[-1], None

        env, shown = ReusingEnv(num_envs=2), []
        saver = Overridden(env, EchoPolicy(), tmp_path, rollout_storage_length=4, min_timesteps=8, min_episodes=0)
        saver.collect_and_save()
        content = load(tmp_path / "trajectory_0" / "traj_000000_000004.pickle")
        np.testing.assert_array_equal(content["observations"][0], env.seen[0]["observation"][0])
        np.testing.assert_array_equal(content["observations"][1:], torch.stack(shown)[:3, 0])
        np.testing.assert_array_equal(content["rewards"][:, 0], [2.0 * step["reward"][0] for step in env.seen])

    def test_steps_of_an_environment_with_one_buffer(self, tmp_path):
        env = ReusingEnv(num_envs=2, num_privileged_obs=7)
        record(tmp_path, env)
        assert_same_trajectories(read_back(tmp_path), env.trajectories())

    def test_buffer_filled_by_the_caller_is_saved(self, tmp_path):
        saver = DemonstrationSaver(RecordingEnv(num_envs=1), EchoPolicy(), tmp_path, rollout_storage_length=9)
        saver.init_traj_handlers()
        saver.collect_step(0)
        saver.save_steps()
        saver.rollout_storage.observations.fill_(7.0)
        saver.save_steps()
        assert (load(tmp_path / "trajectory_0" / "traj_000001_000002.pickle")["observations"] == 7.0).all()
        saver.rollout_storage.clear()
        saver.close()

    def test_folders_of_other_collectors_are_not_counted(self, tmp_path):
        (tmp_path / "collector_a" / "trajectory_7").mkdir(parents=True)
        saver = record(tmp_path, RecordingEnv(num_envs=2))
        assert (tmp_path / "trajectory_0").is_dir()
        assert saver.total_timesteps == on_disk(tmp_path)[0]

    def test_deleting_a_saver_closes_it(self, tmp_path):
        env = RecordingEnv(num_envs=2)
        saver = DemonstrationSaver(env, EchoPolicy(), tmp_path, rollout_storage_length=6)
        saver.init_traj_handlers()
        for step_i in range(4):
            saver.collect_step(step_i)
        del saver
        gc.collect()
        assert totals(tmp_path) == on_disk(tmp_path) == (8, 0)

    def test_closing_unused_saver_creates_nothing(self, tmp_path):
        saver = DemonstrationSaver(EchoEnv(), EchoPolicy(), tmp_path / "new")
        saver.close()
        saver.__del__()
        assert not (tmp_path / "new").exists()

    def test_stopping_rule(self, tmp_path):
        saver = DemonstrationSaver(EchoEnv(), EchoPolicy(), tmp_path, min_timesteps=100, min_episodes=3)
        for steps, episodes, enough in ((100, 3, True), (99, 3, False), (100, 2, False), (500, 0, False)):
            saver.total_timesteps, saver.total_traj_completed = steps, episodes
            assert saver.check_stop() is enough

    def test_log_shows_progress_and_rate(self, tmp_path, caplog):
        saver = DemonstrationSaver(EchoEnv(num_envs=4), EchoPolicy(), tmp_path, 5, min_timesteps=40, min_episodes=0)
        with caplog.at_level(logging.INFO, "st_rl"):
            saver.collect_and_save()
        lines = [record.message for record in caplog.records if "steps/s" in record.message]
        assert lines[0].startswith("20 of 40 steps, 0 trajectories, ")
        assert lines[1].startswith("40 of 40 steps, 4 trajectories, ")
        assert saver.progress() == 1.0

    def test_endless_collection_logs_totals_without_fraction(self, tmp_path):
        saver = DemonstrationSaver(EchoEnv(num_envs=4), EchoPolicy(), tmp_path, 5, min_timesteps=math.inf)
        said = []
        saver.on_progress = lambda share, line: (said.append((share, line)), saver.request_stop())
        saver.collect_and_save()
        ((share, line),) = said
        assert share is None
        assert line.startswith("20 steps, 0 of ")
        assert "left" not in line

    def test_build_runner_finds_saver(self, tmp_path):
        saver = build_runner("DemonstrationSaver", EchoEnv(), EchoPolicy(), tmp_path)
        assert isinstance(saver, DemonstrationSaver)


class TestFullDisk:
    def test_error_has_remedy_and_saved_files_are_complete(self, tmp_path, monkeypatch):
        env = RecordingEnv(num_envs=4, termination_prob=0.1)
        write, written = frame_files._write_content, []

        def fills_up(file, frames, as_npz):
            if len(written) == 9:
                file.write(b"half")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(1)
            write(file, frames, as_npz)

        monkeypatch.setattr(frame_files, "_write_content", fills_up)
        with pytest.raises(OSError, match=r"No space left.*start again") as caught:
            record(tmp_path, env, min_timesteps=10_000)
        assert caught.value.errno == errno.ENOSPC
        assert totals(tmp_path) == on_disk(tmp_path)
        assert not list(tmp_path.rglob(".*"))
        assert len(list(tmp_path.rglob("traj_*"))) == 9
        monkeypatch.undo()
        read_back(tmp_path)
        record(tmp_path, RecordingEnv(num_envs=4), min_timesteps=100)
        assert totals(tmp_path) == on_disk(tmp_path)

    def test_failed_saver_is_closed(self, tmp_path, monkeypatch):
        saver = DemonstrationSaver(EchoEnv(num_envs=2), EchoPolicy(), tmp_path, rollout_storage_length=3)
        saver.init_traj_handlers()
        saver.collect_step(0)
        saver.collect_step(1)

        def full(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(frame_files, "_write_content", full)
        with pytest.raises(OSError, match="No space left"):
            saver.collect_step(2)
        monkeypatch.undo()
        with pytest.raises(RuntimeError, match="closed"):
            saver.collect_step(3)
        assert on_disk(tmp_path) == (0, 0) == totals(tmp_path)
