// Draws the geoms of a MuJoCo model with three.js.
import * as THREE from './lib/three.module.js';
import { OrbitControls } from './lib/OrbitControls.js';

// mjtGeom
const PLANE = 0, HFIELD = 1, SPHERE = 2, CAPSULE = 3, ELLIPSOID = 4, CYLINDER = 5, BOX = 6, MESH = 7;
// Groups that MuJoCo shows by default.
const SHOWN_GROUPS = 3;

function meshGeometry(model, id) {
  const firstVertex = 3 * model.mesh_vertadr[id], firstFace = 3 * model.mesh_faceadr[id];
  const geometry = new THREE.BufferGeometry();
  const vertices = model.mesh_vert.slice(firstVertex, firstVertex + 3 * model.mesh_vertnum[id]);
  geometry.setAttribute('position', new THREE.BufferAttribute(new Float32Array(vertices), 3));
  const faces = model.mesh_face.slice(firstFace, firstFace + 3 * model.mesh_facenum[id]);
  geometry.setIndex(new THREE.BufferAttribute(new Uint32Array(faces), 1));
  geometry.computeVertexNormals();
  return geometry;
}

function heightGeometry(model, id) {
  const rows = model.hfield_nrow[id], columns = model.hfield_ncol[id], start = model.hfield_adr[id];
  const [x, y, z] = model.hfield_size.slice(4 * id, 4 * id + 3);
  const geometry = new THREE.PlaneGeometry(2 * x, 2 * y, columns - 1, rows - 1);
  const position = geometry.attributes.position;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      // Rows of a plane begin at the top, those of a height field at the bottom.
      position.setZ((rows - 1 - row) * columns + column, z * model.hfield_data[start + row * columns + column]);
    }
  }
  geometry.computeVertexNormals();
  return geometry;
}

function geomGeometry(model, geom) {
  const [a, b, c] = model.geom_size.slice(3 * geom, 3 * geom + 3);
  switch (model.geom_type[geom]) {
    case PLANE: return new THREE.PlaneGeometry(200, 200);
    case HFIELD: return heightGeometry(model, model.geom_dataid[geom]);
    case SPHERE: return new THREE.SphereGeometry(a, 24, 16);
    case CAPSULE: return new THREE.CapsuleGeometry(a, 2 * b, 8, 20).rotateX(Math.PI / 2);
    case ELLIPSOID: return new THREE.SphereGeometry(1, 24, 16).scale(a, b, c);
    case CYLINDER: return new THREE.CylinderGeometry(a, a, 2 * b, 28).rotateX(Math.PI / 2);
    case BOX: return new THREE.BoxGeometry(2 * a, 2 * b, 2 * c);
    case MESH: return meshGeometry(model, model.geom_dataid[geom]);
    default: return null;
  }
}

function checker() {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 64;
  const context = canvas.getContext('2d');
  context.fillStyle = '#c3cbd4';
  context.fillRect(0, 0, 64, 64);
  context.fillStyle = '#b3bcc7';
  context.fillRect(0, 0, 32, 32);
  context.fillRect(32, 32, 32, 32);
  const texture = new THREE.CanvasTexture(canvas);
  texture.wrapS = texture.wrapT = THREE.RepeatWrapping;
  texture.repeat.set(200, 200);
  texture.colorSpace = THREE.SRGBColorSpace;
  return texture;
}

function geomMaterial(model, geom) {
  if (model.geom_type[geom] === PLANE) return new THREE.MeshStandardMaterial({ map: checker(), roughness: 1 });
  const material = model.geom_matid[geom];
  const rgba = material >= 0 ? model.mat_rgba.slice(4 * material, 4 * material + 4) : model.geom_rgba.slice(4 * geom, 4 * geom + 4);
  const color = new THREE.Color().setRGB(rgba[0], rgba[1], rgba[2], THREE.SRGBColorSpace);
  return new THREE.MeshStandardMaterial({ color, roughness: 0.65, transparent: rgba[3] < 1, opacity: rgba[3] });
}

export class Scene {
  constructor(model, baseBody) {
    this.model = model;
    this.baseBody = baseBody;
    this.scene = new THREE.Scene();
    this.scene.background = new THREE.Color('#dfe8f1');
    this.scene.fog = new THREE.Fog('#dfe8f1', 8, 40);
    this.camera = new THREE.PerspectiveCamera(45, 1, 0.02, 100);
    this.camera.up.set(0, 0, 1);
    this.renderer = new THREE.WebGLRenderer({ antialias: true });
    this.renderer.shadowMap.enabled = true;
    document.body.prepend(this.renderer.domElement);
    this.controls = new OrbitControls(this.camera, this.renderer.domElement);
    this.scene.add(new THREE.HemisphereLight('#ffffff', '#8d99a6', 1.6));
    this.light = new THREE.DirectionalLight('#ffffff', 2.2);
    this.light.castShadow = true;
    this.light.shadow.mapSize.set(1024, 1024);
    for (const side of ['left', 'bottom']) this.light.shadow.camera[side] = -2;
    for (const side of ['right', 'top']) this.light.shadow.camera[side] = 2;
    this.scene.add(this.light, this.light.target);
    this.arrows = ['#2cb573', '#3b82f6'].map((color) => new THREE.ArrowHelper(new THREE.Vector3(1, 0, 0), new THREE.Vector3(), 0.1, color));
    this.scene.add(...this.arrows);
    this.addGeoms();
    this.last = new THREE.Vector3();
    window.addEventListener('resize', () => this.resize());
    this.resize();
  }

  addGeoms() {
    const model = this.model;
    this.meshes = [];
    for (let geom = 0; geom < model.ngeom; geom++) {
      const alpha = model.geom_matid[geom] >= 0 ? model.mat_rgba[4 * model.geom_matid[geom] + 3] : model.geom_rgba[4 * geom + 3];
      const geometry = model.geom_group[geom] < SHOWN_GROUPS && alpha > 0 ? geomGeometry(model, geom) : null;
      if (geometry === null) continue;
      const mesh = new THREE.Mesh(geometry, geomMaterial(model, geom));
      mesh.castShadow = model.geom_bodyid[geom] > 0;
      mesh.receiveShadow = true;
      mesh.matrixAutoUpdate = false;
      this.scene.add(mesh);
      this.meshes.push([geom, mesh]);
    }
  }

  resize() {
    this.renderer.setPixelRatio(Math.min(2, window.devicePixelRatio));
    this.renderer.setSize(window.innerWidth, window.innerHeight);
    this.camera.aspect = window.innerWidth / window.innerHeight;
    // On a phone the panel covers the lower part: the robot is drawn above it.
    const isPhone = window.innerWidth <= 600;
    const lift = isPhone ? Math.round(window.innerHeight * 0.18) : 0;
    this.camera.setViewOffset(window.innerWidth, window.innerHeight, isPhone ? 0 : 120, lift, window.innerWidth, window.innerHeight);
    this.camera.updateProjectionMatrix();
  }

  // Look at the robot from behind and the side.
  lookAt(position, distance) {
    this.last.set(...position);
    this.controls.target.copy(this.last);
    this.camera.position.copy(this.last).add(new THREE.Vector3(-0.75, -0.8, 0.45).multiplyScalar(distance));
  }

  draw(data, follows, velocities) {
    const positions = data.geom_xpos, rotations = data.geom_xmat;
    for (const [geom, mesh] of this.meshes) {
      const p = 3 * geom, r = 9 * geom;
      mesh.matrix.set(
        rotations[r], rotations[r + 1], rotations[r + 2], positions[p],
        rotations[r + 3], rotations[r + 4], rotations[r + 5], positions[p + 1],
        rotations[r + 6], rotations[r + 7], rotations[r + 8], positions[p + 2], 0, 0, 0, 1);
      mesh.matrixWorldNeedsUpdate = true;
    }
    const base = new THREE.Vector3(...data.xpos.slice(3 * this.baseBody, 3 * this.baseBody + 3));
    if (follows) {
      const moved = base.clone().sub(this.last).setZ(0);
      this.camera.position.add(moved);
      this.controls.target.add(moved);
    }
    this.last.copy(base);
    this.light.position.copy(base).add(new THREE.Vector3(-1.5, 1, 4));
    this.light.target.position.copy(base);
    velocities.forEach(([x, y], index) => {
      const vector = new THREE.Vector3(x, y, 0), length = 0.4 * vector.length();
      this.arrows[index].visible = length > 0.02;
      this.arrows[index].position.copy(base).add(new THREE.Vector3(0, 0, 0.25 + 0.06 * index));
      this.arrows[index].setDirection(vector.normalize());
      this.arrows[index].setLength(Math.max(0.02, length), 0.06, 0.04);
    });
    this.controls.update();
    this.renderer.render(this.scene, this.camera);
  }
}
