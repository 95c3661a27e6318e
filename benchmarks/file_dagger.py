"""DAgger through files: two collectors and one trainer connected by folders, compared with a single process.

Run it as `python benchmarks/file_dagger.py --device cuda`.

The teacher of quadruped-walk has privileged observations; the student is recurrent and observes noisy on-board sensors.
It is trained

    in process    by one process that alternates rollouts and updates (`OnPolicyRunner`)
    files         by one process that reads trajectories (`TwoStageRunner`), while two others step environments with the
                  newest student and label its observations with the teacher's actions (`DaggerSaver`)
    two stages    on demonstrations of the teacher first; evaluated at the switch to the environment

for the same number of iterations, and evaluated by the return of whole episodes without exploration noise, on robots,
commands and pushes not used in training. Writes one JSON file.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from distillation import DAGGER, RESULTS, TASK, ReturnMeter, task_config, train_teacher
from seeds import run_seeds

from st_rl.algorithms.teacher import load_teacher
from st_rl.cli.support.torch_setup import seed_everything, use_tensor_cores
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners import DaggerSaver, DemonstrationSaver, OnPolicyRunner, TwoStageRunner
from st_rl.sim.tasks import TASKS, make_task
from st_rl.storage.rollout_files.layout import frame_files, trajectory_folders


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--robots", type=int, help="robots of a training process; 2,048 on a GPU and 128 on a CPU by default"
    )
    parser.add_argument("--collected", type=int, help="robots of each collector; half of --robots by default")
    parser.add_argument("--collectors", type=int, default=2)
    parser.add_argument("--teacher", type=Path, help="folder that keeps teachers between runs")
    parser.add_argument("--teacher-iterations", type=int, default=220)
    parser.add_argument("--iterations", type=int, default=120, help="iterations of every student")
    parser.add_argument("--save-interval", type=int, default=5, help="iterations between checkpoints of the student")
    parser.add_argument("--interval", type=int, default=20, help="iterations between evaluations of the teacher")
    parser.add_argument("--eval-robots", type=int, default=512, help="robots in an evaluation")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of an evaluated episode")
    parser.add_argument("--memory", type=int, default=128, help="width of the students' recurrent layer")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 128, 128])
    parser.add_argument("--demonstrations", type=float, default=1e6, help="steps of the teacher for the two stages")
    parser.add_argument("--work", type=Path, default=Path("file_dagger_work"), help="folder for trajectories and runs")
    parser.add_argument("--output", type=Path, default=RESULTS / "file_dagger.json")
    parser.add_argument("--collector", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.robots = options.robots or (2048 if options.device.startswith("cuda") else 128)
    options.collected = options.collected or options.robots // 2
    return options


def student_config(options: argparse.Namespace, teacher: dict[str, Any]) -> dict[str, Any]:
    """Policy and training configuration of every student."""
    config = TASKS[TASK].training_config()
    config["policy"] |= {"actor_hidden_dims": options.hidden, "critic_hidden_dims": options.hidden}
    config["policy"] |= {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": options.memory}
    config["algorithm"] |= {**DAGGER, "class_name": "TPPO", "teacher_policy": teacher}
    return config | {"save_interval": options.save_interval, "keep_last": 3, "keep_best": False, "log_interval": 5}


def make_env(options: argparse.Namespace, robots: int, seed: int) -> Any:
    return make_task(TASK, robots, options.device, seed, cfg=task_config())


def make_meter(runner: OnPolicyRunner, options: argparse.Namespace) -> Callable[[], float]:
    """The evaluator of the runner's policy; create it before the first action."""
    meter = ReturnMeter(runner, options, task_config())
    return lambda: meter()["return"]


def sync(device: str) -> float:
    """The time after synchronizing the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def learn_in_process(options: argparse.Namespace, seed: int, teacher: dict[str, Any]) -> dict[str, Any]:
    """Distillation in a single process."""
    seed_everything(1000 + seed)
    env = make_env(options, options.robots, 1000 + seed)
    runner = OnPolicyRunner(env, student_config(options, teacher), device=options.device)
    evaluate = make_meter(runner, options)
    untrained = evaluate()
    begin = sync(options.device)
    runner.learn(options.iterations, init_at_random_ep_len=True)
    seconds = sync(options.device) - begin
    return {"untrained_return": untrained, "return": evaluate(), "seconds": seconds}


def teacher_for(env: Any, policy: Any, teacher: dict[str, Any], device: str) -> tuple[Any, Any]:
    """The teacher's network and its observation normalizer."""
    loaded = load_teacher(policy, teacher, "ActorCritic", None, True, device)
    normalizer = None
    if loaded.obs_statistics is not None:
        normalizer = EmpiricalNormalization(env.num_privileged_obs).to(device).eval()
        normalizer.load_state_dict(dict(loaded.obs_statistics))
    return loaded.policy, normalizer


def collect(options: argparse.Namespace) -> None:
    """A collector: loads the student's checkpoints until the trainer exits."""
    job = options.collector
    seed_everything(job["seed"])
    env = make_env(options, options.collected, job["seed"])
    student = OnPolicyRunner(env, student_config(options, job["teacher"]), device=options.device).alg.actor_critic
    policy, normalizer = teacher_for(env, student, job["teacher"], options.device)
    saver = DaggerSaver(
        env,
        policy,
        job["save_dir"],
        rollout_storage_length=64,
        min_timesteps=1e12,
        use_critic_obs=True,
        critic_obs_normalizer=normalizer,
        training_policy_logdir=job["student"],
        teacher_act_prob=DAGGER.get("teacher_act_prob", "exp"),
        update_times_scale=DAGGER["update_times_scale"],
    )
    saver.stop_with_trainer = True
    begin = time.perf_counter()
    saver.collect_and_save()
    seconds = time.perf_counter() - begin
    result = {"steps": saver.total_timesteps, "seconds": seconds, "steps_per_second": saver.total_timesteps / seconds}
    Path(job["save_dir"], "result.json").write_text(json.dumps(result))


def start_collector(options: argparse.Namespace, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    arguments = ["--device", options.device, "--collected", str(options.collected), "--robots", str(options.robots)]
    arguments += ["--memory", str(options.memory), "--hidden", *map(str, options.hidden)]
    command = [sys.executable, __file__, *arguments, "--collector", json.dumps(job)]
    with open(Path(job["save_dir"]).with_suffix(".log"), "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def learn_from_files(options: argparse.Namespace, seed: int, teacher: dict[str, Any]) -> dict[str, Any]:
    """Start the collectors and train in this process."""
    data, run = options.work / "data", options.work / "student"
    for folder in (data, run):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    seed_everything(1000 + seed)
    config = student_config(options, teacher) | {
        "pretrain_iterations": -1,
        "pretrain_dataset": {
            "data_dir": str(data),
            "dataset_loops": 0,
            "keep_latest_n_trajs": options.collectors * options.collected,
            "random_shuffle_traj_order": True,
            "starting_frame_range": [0, 200],
            "mark_first_frame_done": False,
            "poll_seconds": 0.2,
        },
    }
    env = make_env(options, options.robots, 1000 + seed)
    runner = TwoStageRunner(env, config, log_dir=run, device=options.device)
    evaluate = make_meter(runner, options)
    runner.init_writter(False)
    begin = time.perf_counter()
    jobs = [
        {
            "seed": 2000 + 10 * seed + i,
            "save_dir": str(data / f"collector_{i}"),
            "student": str(run),
            "teacher": teacher,
        }
        for i in range(options.collectors)
    ]
    processes = [start_collector(options, job) for job in jobs]
    try:
        runner.rollout_dataset.reset()
        start_up, dataset = time.perf_counter() - begin, runner.rollout_dataset
        waited, read, begin = dataset.waiting_seconds, dataset.num_transitions_read, sync(options.device)
        runner.learn(options.iterations)
        seconds = sync(options.device) - begin
    finally:
        runner.close()
        for process in processes:
            process.wait(timeout=60)
    collectors = [json.loads(Path(job["save_dir"], "result.json").read_text()) for job in jobs]
    return {
        "return": evaluate(),
        "seconds": seconds,
        "start_up_seconds": start_up,
        "waiting_fraction": (dataset.waiting_seconds - waited) / seconds,
        "transitions_read": dataset.num_transitions_read - read,
        "files_skipped": dataset.num_files_skipped,
        "files": sum(len(frame_files(folder)) for folder in trajectory_folders(data)),
        "collectors": collectors,
    }


def learn_in_two_stages(options: argparse.Namespace, seed: int, teacher: dict[str, Any]) -> dict[str, Any]:
    """Pretrain on demonstrations; measures the student at the switch to the environment."""
    folder = options.work / "demonstrations"
    shutil.rmtree(folder, ignore_errors=True)
    seed_everything(3000 + seed)
    env = make_env(options, options.robots, 3000 + seed)
    config = student_config(options, teacher) | {
        "pretrain_iterations": options.iterations,
        "pretrain_dataset": {"data_dir": str(folder), "dataset_loops": 0, "random_shuffle_traj_order": True},
    }
    runner = TwoStageRunner(env, config, device=options.device)
    evaluate = make_meter(runner, options)
    policy, normalizer = teacher_for(env, runner.alg.actor_critic, teacher, options.device)
    saver = DemonstrationSaver(
        env,
        policy,
        folder,
        min_timesteps=options.demonstrations,
        min_episodes=0,
        use_critic_obs=True,
        demo_by_sample=True,
        critic_obs_normalizer=normalizer,
    )
    begin = time.perf_counter()
    saver.collect_and_save()
    collecting = time.perf_counter() - begin
    untrained = evaluate()
    runner.learn(options.iterations)
    before = _scale(runner)
    at_switch = evaluate()
    runner.learn(1)
    return {
        "untrained_return": untrained,
        "return_at_hand_over": at_switch,
        "demonstrated_steps": saver.total_timesteps,
        "collecting_seconds": collecting,
        "observation_std_from_files": before,
        "observation_std_from_robots": _scale(runner),
    }


def _scale(runner: OnPolicyRunner) -> float:
    """Mean standard deviation of the student's observations in the last rollout."""
    return float(runner.alg.storage.observations.flatten(0, 1).std(dim=0).mean())


def run_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    folder = options.teacher or options.work
    folder.mkdir(parents=True, exist_ok=True)
    path, settings = folder / f"teacher_{seed}.pt", folder / f"teacher_{seed}.json"
    with redirect_stdout(sys.stderr):
        if not settings.is_file():
            teacher, result = train_teacher(options, seed, path.resolve())
            settings.write_text(json.dumps({"policy": teacher, "return": result["last_return"]}))
        kept = json.loads(settings.read_text())
        teacher = {**kept["policy"], "teacher_ac_path": str(path.resolve())}
        row: dict[str, Any] = {"seed": seed, "teacher_return": kept["return"]}
        row["in_process"] = learn_in_process(options, seed, teacher)
        row["files"] = learn_from_files(options, seed, teacher)
        row["two_stages"] = learn_in_two_stages(options, seed, teacher)
    row["files_fraction_of_in_process"] = row["files"]["return"] / row["in_process"]["return"]
    stages = row["two_stages"]
    row["hand_over_times_untrained"] = stages["return_at_hand_over"] / max(stages["untrained_return"], 1e-9)
    print(
        f"seed {seed}: teacher {kept['return']:.2f}, in process {row['in_process']['return']:.2f}, files "
        f"{row['files']['return']:.2f} (waiting {row['files']['waiting_fraction']:.1%}), two stages "
        f"{stages['untrained_return']:.2f} -> {stages['return_at_hand_over']:.2f}",
        flush=True,
    )
    return row


def main() -> None:
    options = parse_options()
    use_tensor_cores(options.device)
    if options.collector is not None:
        if options.device == "cpu":
            torch.set_num_threads(1)
        collect(options)
        return
    run_seeds(options.output, "file_dagger", vars(options), lambda seed: run_seed(options, seed))


if __name__ == "__main__":
    main()
