#include "metal/host/kernel_runtime.h"

#include <algorithm>
#include <cstring>

#include "metal/host/machine.h"

namespace thalweg::metal {
namespace {

// Exchanges one word per lane within the simdgroup.
const std::array<std::uint32_t, kLanes>& exchange(std::uint32_t word, int line) {
  Machine& m = machine();
  Simdgroup& group = m.current_simdgroup();
  auto& words = group.words[group.meeting % 2];
  words[m.current().position.thread_index_in_simdgroup] = word;
  m.meet(line);
  return words;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float float_of(std::uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
std::uint32_t lane() { return machine().current().position.thread_index_in_simdgroup; }

}  // namespace
}  // namespace thalweg::metal

using namespace thalweg::metal;  // NOLINT(google-build-using-namespace): the functions below are extern "C"

extern "C" {

void thalweg_threadgroup_barrier(unsigned flags, int line) { machine().barrier(flags, line); }
void thalweg_simdgroup_barrier(unsigned flags, int line) { machine().simdgroup_barrier(flags, line); }

unsigned thalweg_simd_shuffle(unsigned value, unsigned from, int line) {
  const auto& words = exchange(value, line);
  return words[from % kLanes];
}
float thalweg_simd_sum(float value, int line) {
  float sum = 0.0F;
  for (const std::uint32_t word : exchange(bits_of(value), line)) {
    sum += float_of(word);
  }
  return sum;
}
unsigned thalweg_simd_sum_uint(unsigned value, int line) {
  unsigned sum = 0;
  for (const std::uint32_t word : exchange(value, line)) sum += word;
  return sum;
}
float thalweg_simd_max(float value, int line) {
  float largest = value;
  for (const std::uint32_t word : exchange(bits_of(value), line)) {
    largest = std::max(largest, float_of(word));
  }
  return largest;
}
float thalweg_simd_prefix_sum(float value, bool inclusive, int line) {
  const auto& words = exchange(bits_of(value), line);
  const std::size_t end = lane() + (inclusive ? 1 : 0);
  float sum = 0.0F;
  for (std::size_t i = 0; i < end; ++i) sum += float_of(words[i]);
  return sum;
}
unsigned thalweg_simd_prefix_sum_uint(unsigned value, bool inclusive, int line) {
  const auto& words = exchange(value, line);
  const std::size_t end = lane() + (inclusive ? 1 : 0);
  unsigned sum = 0;
  for (std::size_t i = 0; i < end; ++i) sum += words[i];
  return sum;
}

void thalweg_matrix_access(unsigned kind) { machine().current().matrix_access = kind; }
unsigned thalweg_lane() { return lane(); }

void thalweg_simdgroup_multiply(const float a[2], const float b[2], const float c[2], float result[2], int line) {
  machine().multiply(a, b, c, result, line);
}

unsigned thalweg_atomic_add(void* address, unsigned value) {
  machine().access(address, sizeof(unsigned), true, true);
  auto* word = static_cast<unsigned*>(address);
  const unsigned before = *word;
  *word += value;
  return before;
}
unsigned thalweg_atomic_or(void* address, unsigned value) {
  machine().access(address, sizeof(unsigned), true, true);
  auto* word = static_cast<unsigned*>(address);
  const unsigned before = *word;
  *word |= value;
  return before;
}
unsigned thalweg_atomic_load(const void* address) {
  machine().access(address, sizeof(unsigned), false, true);
  return *static_cast<const unsigned*>(address);
}
void thalweg_atomic_store(void* address, unsigned value) {
  machine().access(address, sizeof(unsigned), true, true);
  *static_cast<unsigned*>(address) = value;
}

// Called before every load and store of a compiled kernel, by clang's -fsanitize-coverage=trace-loads,trace-stores.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void __sanitizer_cov_load1(const void* address) { machine().access(address, 1, false, false); }
void __sanitizer_cov_load2(const void* address) { machine().access(address, 2, false, false); }
void __sanitizer_cov_load4(const void* address) { machine().access(address, 4, false, false); }
void __sanitizer_cov_load8(const void* address) { machine().access(address, 8, false, false); }
void __sanitizer_cov_load16(const void* address) { machine().access(address, 16, false, false); }
void __sanitizer_cov_store1(void* address) { machine().access(address, 1, true, false); }
void __sanitizer_cov_store2(void* address) { machine().access(address, 2, true, false); }
void __sanitizer_cov_store4(void* address) { machine().access(address, 4, true, false); }
void __sanitizer_cov_store8(void* address) { machine().access(address, 8, true, false); }
void __sanitizer_cov_store16(void* address) { machine().access(address, 16, true, false); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

}  // extern "C"
