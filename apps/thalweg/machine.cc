#include "machine.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "core/threads.h"
#include "cpu/vector.h"

namespace thalweg::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Machine measure_machine(int threads) {
  const Stream stream = Stream::cpu(threads);
  const cpu::VectorOps& vec = cpu::vector_ops();
  Machine machine;

  constexpr std::int64_t kPieces = 256;
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;  // floats, 256 MB in all
  const std::vector<float> buffer(static_cast<std::size_t>(kPieces * kPiece), 1.0F);
  std::vector<float> sums(kPieces);
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point start = Clock::now();
    parallel_for(stream, kPieces, [&](std::int64_t task, int) {
      const float* piece = buffer.data() + task * kPiece;
      sums[static_cast<std::size_t>(task)] = vec.dot(piece, piece, kPiece);
    });
    const double bytes = static_cast<double>(buffer.size()) * sizeof(float);
    machine.bytes_per_second = std::max(machine.bytes_per_second, bytes / seconds_since(start));
  }

  const int workers = thread_count(stream);
  for (int round = 0; round < 5; ++round) {
    std::vector<double> flops(static_cast<std::size_t>(workers));
    const Clock::time_point start = Clock::now();
    parallel_for(stream, workers, [&](std::int64_t task, int) {
      flops[static_cast<std::size_t>(task)] = vec.fma_burst(2'000'000, &sums[static_cast<std::size_t>(task) % kPieces]);
    });
    double total = 0.0;
    for (const double f : flops) total += f;
    machine.flops_per_second = std::max(machine.flops_per_second, total / seconds_since(start));
  }
  return machine;
}

}  // namespace thalweg::app
