// Runs a policy on a robot in MuJoCo, all in this page: sensors -> policy.onnx -> joint targets.
import loadMujoco from './lib/mujoco.js';
import * as ort from './lib/ort.wasm.min.mjs';
import { Scene } from './scene.js';

const AXES = [['lin_vel_x', 'Forward (m/s)'], ['lin_vel_y', 'Left (m/s)'], ['ang_vel_yaw', 'Turn (rad/s)']];
// Control steps that are caught up with in one frame of a slow machine.
const MOST_STEPS = 12;
const element = (id) => document.getElementById(id);

async function fetchFile(name, kind) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer[kind]();
}

// The robot of the kit in MuJoCo.
class Robot {
  constructor(mujoco, deploy) {
    this.mujoco = mujoco;
    this.deploy = deploy;
    this.model = mujoco.MjModel.from_xml_path('/robot/robot.xml');
    this.data = new mujoco.MjData(this.model);
    this.substeps = Math.max(1, Math.round(deploy.control_period_s / this.model.opt.timestep));
    this.reset();
  }

  reset() {
    const { mujoco, model, data, deploy } = this;
    mujoco.mj_resetDataKeyframe(model, data, 0);
    data.qvel.fill(0);
    deploy.joints.forEach((joint, index) => { data.ctrl[index] = joint.default_pos; });
    mujoco.mj_forward(model, data);
  }

  get orientation() {
    const first = this.deploy.robot.base_qpos + 3;
    return this.data.qpos.slice(first, first + 4);
  }

  // Rotation matrix from the base to the world, by rows.
  get axes() {
    const [w, x, y, z] = this.orientation;
    return [
      [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
      [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
      [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ];
  }

  get heading() {
    const axes = this.axes;
    return Math.atan2(axes[1][0], axes[0][0]);
  }

  // Linear velocity in the frame of the base.
  get velocity() {
    const first = this.deploy.robot.base_qvel, world = this.data.qvel.slice(first, first + 3), axes = this.axes;
    return [0, 1, 2].map((axis) => axes[0][axis] * world[0] + axes[1][axis] * world[1] + axes[2][axis] * world[2]);
  }

  get gyro() {
    const first = this.deploy.robot.base_qvel + 3;
    return this.data.qvel.slice(first, first + 3);
  }

  get hasFallen() { return this.axes[2][2] < Math.cos(this.deploy.guards.max_tilt_rad); }

  measure(command) {
    const { data, deploy } = this, robot = deploy.robot;
    return {
      joint_pos: robot.joint_qpos.map((index) => data.qpos[index]),
      joint_vel: robot.joint_qvel.map((index) => data.qvel[index]),
      base_ang_vel: this.gyro,
      orientation: this.orientation,
      base_lin_vel: this.velocity,
      foot_contact: (robot.foot_sensors ?? []).map((index) => (data.sensordata[index] > 0 ? 1 : 0)),
      command,
    };
  }

  apply(targets) {
    this.data.ctrl.set(targets);
    for (let step = 0; step < this.substeps; step++) this.mujoco.mj_step(this.model, this.data);
  }

  // Add a velocity in a direction seen from the robot, 0 forward and 90 to its left.
  push(degrees, speed) {
    const angle = this.heading + degrees * Math.PI / 180, first = this.deploy.robot.base_qvel;
    this.data.qvel[first] += speed * Math.cos(angle);
    this.data.qvel[first + 1] += speed * Math.sin(angle);
  }
}

// policy.onnx, which keeps its states between two steps.
class Policy {
  constructor(session, deploy) {
    this.session = session;
    this.deploy = deploy;
    this.reset();
  }

  reset() {
    this.states = {};
    for (const [name, signal] of Object.entries(this.deploy.states)) {
      this.states[name] = new ort.Tensor('float32', new Float32Array(signal.shape.reduce((a, b) => a * b, 1)), signal.shape);
    }
  }

  async step(readings) {
    const inputs = { ...this.states };
    for (const [name, signal] of Object.entries(this.deploy.inputs)) {
      inputs[name] = new ort.Tensor('float32', Float32Array.from(readings[name]), signal.shape);
    }
    const outputs = await this.session.run(inputs);
    for (const name of Object.keys(this.states)) this.states[name] = outputs[`next_${name}`];
    return outputs.joint_targets.data;
  }
}

function addSliders(deploy) {
  const command = [0, 0, 0];
  AXES.forEach(([name, title], axis) => {
    const [low, high] = [Math.min(0, deploy.commands[name][0]), Math.max(0, deploy.commands[name][1])];
    if (high - low < 1e-6) return;
    const label = document.createElement('label'), slider = document.createElement('input'), output = document.createElement('output');
    Object.assign(slider, { type: 'range', min: low, max: high, step: 0.05, id: name });
    slider.value = axis === 0 ? 0.5 * high : 0;
    label.append(title, slider, output);
    element('commands').append(label);
    slider.addEventListener('input', () => { command[axis] = Number(slider.value); });
    command[axis] = Number(slider.value);
  });
  for (const label of document.querySelectorAll('#panel > label, #commands > label')) {
    const [slider, output] = [label.querySelector('input'), label.querySelector('output')];
    const show = () => { output.textContent = Number(slider.value).toFixed(slider.step < 1 ? 2 : 0); };
    slider.addEventListener('input', show);
    show();
  }
  return command;
}

async function load() {
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = new URL('./lib/', import.meta.url).href;
  const [mujoco, policy, deploy, files] = await Promise.all([
    loadMujoco(), fetchFile('policy.onnx', 'arrayBuffer'), fetchFile('deploy.json', 'json'), fetchFile('robot.json', 'json'),
  ]);
  for (const file of files) {
    const folders = file.split('/').slice(0, -1);
    folders.forEach((_, depth) => {
      const path = '/' + folders.slice(0, depth + 1).join('/');
      if (!mujoco.FS.analyzePath(path).exists) mujoco.FS.mkdir(path);
    });
    mujoco.FS.writeFile('/' + file, new Uint8Array(await fetchFile(file, 'arrayBuffer')));
  }
  const session = await ort.InferenceSession.create(policy, { executionProviders: ['wasm'] });
  return { robot: new Robot(mujoco, deploy), policy: new Policy(session, deploy), deploy };
}

async function run({ robot, policy, deploy }) {
  const command = addSliders(deploy), period = deploy.control_period_s;
  const base = robot.model.body(deploy.robot.base_body).id;
  const scene = new Scene(robot.model, base);
  scene.lookAt(robot.data.xpos.slice(3 * base, 3 * base + 3), 2.6 * Math.max(0.5, robot.model.stat.extent));
  const title = deploy.run === deploy.task ? deploy.task : `${deploy.task}: ${deploy.run}`;
  element('title').textContent = document.title = title;
  let falls = 0, paused = false, fallenFor = 0, due = 0, last = performance.now(), mean = [0, 0, 0];
  const reset = () => { robot.reset(); policy.reset(); fallenFor = 0; mean = [0, 0, 0]; };
  element('push').addEventListener('click', () => robot.push(Number(element('direction').value), Number(element('strength').value)));
  element('reset').addEventListener('click', reset);
  element('pause').addEventListener('click', () => { paused = !paused; element('pause').textContent = paused ? 'Continue' : 'Pause'; });
  for (;;) {
    const now = performance.now();
    due = paused ? 0 : Math.min(MOST_STEPS, due + Number(element('speed').value) * (now - last) / (1000 * period));
    last = now;
    for (; due >= 1; due -= 1) {
      robot.apply(await policy.step(robot.measure(command)));
      const velocity = robot.velocity;
      [velocity[0], velocity[1], robot.gyro[2]].forEach((value, axis) => { mean[axis] += 0.04 * (value - mean[axis]); });
      fallenFor = robot.hasFallen ? fallenFor + period : 0;
      if (fallenFor > 1) { falls += 1; reset(); }
    }
    const turn = (x, y) => [Math.cos(robot.heading) * x - Math.sin(robot.heading) * y, Math.sin(robot.heading) * x + Math.cos(robot.heading) * y];
    scene.draw(robot.data, element('follow').checked, [turn(command[0], command[1]), turn(mean[0], mean[1])]);
    element('state').textContent = `${robot.data.time.toFixed(1)} s, ${falls} falls; walks ${mean[0].toFixed(2)} m/s forward, `
      + `${mean[1].toFixed(2)} m/s left, turns ${mean[2].toFixed(2)} rad/s`;
    Object.assign(document.body.dataset, { time: robot.data.time, falls, forward: mean[0], left: mean[1], side: robot.velocity[1] });
    await new Promise(requestAnimationFrame);
  }
}

load().then(run).catch((error) => {
  console.error(error);
  element('title').textContent = 'This page does not run here';
  element('state').textContent = location.protocol === 'file:' ? 'Open it from a web server, for example: python -m http.server' : String(error);
});
