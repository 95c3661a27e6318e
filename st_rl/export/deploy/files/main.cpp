// Replays the golden run through policy.hpp and compares every output:
//   c++ -std=c++17 -O2 -o replay main.cpp && ./replay golden.bin
// golden.bin holds one row of float32 per control step, little-endian:
// reset (1 at the start of an episode), Inputs, State before the step, Outputs, each in the order of policy.hpp.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "policy.hpp"

using st_rl_policy::Inputs;
using st_rl_policy::Outputs;
using st_rl_policy::Policy;
using st_rl_policy::State;

int main(int argc, char** argv) {
  const char* path = argc > 1 ? argv[1] : "golden.bin";
  std::ifstream file(path, std::ios::binary);
  constexpr std::size_t size = sizeof(float) + sizeof(Inputs) + sizeof(State) + sizeof(Outputs);
  std::vector<char> row(size);
  auto policy = std::make_unique<Policy>();
  Inputs inputs;
  Outputs expected;
  Outputs outputs;
  int steps = 0;
  float worst = 0.0f;
  std::vector<double> microseconds;
  while (file.read(row.data(), static_cast<std::streamsize>(size))) {
    const char* at = row.data();
    float reset = 0.0f;
    std::memcpy(&reset, at, sizeof(float));
    at += sizeof(float);
    std::memcpy(static_cast<void*>(&inputs), at, sizeof(Inputs));
    at += sizeof(Inputs);
    // Inside an episode the policy carries its own state.
    if (reset != 0.0f) std::memcpy(static_cast<void*>(&policy->state), at, sizeof(State));
    at += sizeof(State);
    std::memcpy(static_cast<void*>(&expected), at, sizeof(Outputs));
    const auto start = std::chrono::steady_clock::now();
    policy->step(inputs, outputs);
    const auto end = std::chrono::steady_clock::now();
    microseconds.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    for (std::size_t i = 0; i < outputs.joint_targets.size(); ++i) {
      const float difference = std::fabs(outputs.joint_targets[i] - expected.joint_targets[i]);
      // Not std::max, which ignores NaN.
      if (!(difference <= worst)) worst = difference;
    }
    ++steps;
  }
  if (steps == 0) {
    std::printf("no steps in %s\n", path);
    return 2;
  }
  const auto middle = microseconds.begin() + steps / 2;
  std::nth_element(microseconds.begin(), middle, microseconds.end());
  std::printf("steps %d\nlargest_difference_rad %.9g\nmicroseconds_per_step %.3f\n", steps, static_cast<double>(worst),
              *middle);
  return worst <= 1e-5f ? 0 : 1;
}
