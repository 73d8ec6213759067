#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "core/threads.h"
#include "cpu/vector.h"

namespace thalweg::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr std::int64_t kBlock = std::int64_t{1} << 18;  // floats
constexpr std::int64_t kBlockBytes = kBlock * static_cast<std::int64_t>(sizeof(float));

}  // namespace

void MemoryReader::Free::operator()(float* memory) const { std::free(memory); }

MemoryReader::MemoryReader(std::int64_t bytes) {
  const auto blocks = static_cast<std::size_t>(bytes / kBlockBytes);
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t size = blocks * kBlockBytes;
  buffer_.reset(static_cast<float*>(std::aligned_alloc(kHugePage, (size + kHugePage - 1) / kHugePage * kHugePage)));
  if (buffer_ == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Huge pages, so that TLB misses do not limit the bandwidth.
  madvise(buffer_.get(), size, MADV_HUGEPAGE);
#endif
  std::fill_n(buffer_.get(), blocks * kBlock, 1.0F);
  sums_.resize(blocks);
}

std::int64_t MemoryReader::bytes() const { return static_cast<std::int64_t>(sums_.size()) * kBlockBytes; }

void MemoryReader::pass(const Stream& stream) {
  const cpu::VectorOps& vec = cpu::vector_ops();
  parallel_for(stream, static_cast<std::int64_t>(sums_.size()), [&](std::int64_t task, int) {
    const float* block = buffer_.get() + task * kBlock;
    sums_[static_cast<std::size_t>(task)] = vec.dot(block, block, kBlock);
  });
}

Machine measure_machine(int threads) {
  const Stream stream = Stream::cpu(threads);
  const cpu::VectorOps& vec = cpu::vector_ops();
  Machine machine;

  MemoryReader reader(std::int64_t{256} << 20);
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point start = Clock::now();
    reader.pass(stream);
    const double rate = static_cast<double>(reader.bytes()) / seconds_since(start);
    machine.bytes_per_second = std::max(machine.bytes_per_second, rate);
  }

  const int workers = thread_count(stream);
  for (int round = 0; round < 5; ++round) {
    std::vector<double> flops(static_cast<std::size_t>(workers));
    std::vector<float> sinks(static_cast<std::size_t>(workers));
    const Clock::time_point start = Clock::now();
    parallel_for(stream, workers, [&](std::int64_t task, int) {
      flops[static_cast<std::size_t>(task)] = vec.fma_burst(2'000'000, &sinks[static_cast<std::size_t>(task)]);
    });
    double total = 0.0;
    for (const double f : flops) total += f;
    machine.flops_per_second = std::max(machine.flops_per_second, total / seconds_since(start));
  }
  return machine;
}

}  // namespace thalweg::app
