// The readers allocate memory in proportion to the file, whatever its header says.

#include <cstdlib>
#include <cstring>
#include <new>

#include "io/files.h"
#include "io/gguf.h"
#include "io/gguf_bytes.h"
#include "io/safetensors.h"

namespace {

bool g_counting = false;
std::size_t g_allocated = 0;

void* allocate(std::size_t bytes) noexcept {
  if (g_counting) g_allocated += bytes;
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* allocate_or_throw(std::size_t bytes) {
  void* memory = allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace thalweg::io {
namespace {

// Of all allocations together, freed or not.
template <class Parse>
std::size_t allocated_by(Parse&& parse, const std::string& bytes) {
  g_allocated = 0;
  g_counting = true;
  try {
    parse(as_bytes(bytes), "x");
  } catch (const Error&) {
    // Refused; the test counts the allocations until then.
  }
  g_counting = false;
  return g_allocated;
}

// The smallest elements of a file, and the memory that each takes: a metadata entry takes 14 bytes of the file and
// some 150 of memory, more while vectors and maps grow.
constexpr std::size_t kFactor = 64;
constexpr std::size_t kMessages = 4096;

void expect_gguf_within_bounds(const std::string& bytes) {
  EXPECT_LE(allocated_by(parse_gguf, bytes), kFactor * bytes.size() + kMessages);
}

TEST(Allocations, CountsThatAFileCannotHold) {
  const std::string filler(64, '\0');
  for (const std::uint64_t absurd :
       {std::uint64_t{1} << 20, std::uint64_t{1} << 31, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    expect_gguf_within_bounds(GgufBytes(3, absurd, 0).raw(filler).bytes());
    expect_gguf_within_bounds(GgufBytes(3, 0, absurd).raw(filler).bytes());
    expect_gguf_within_bounds(GgufBytes(3, 0, 1).put(absurd).raw(filler).bytes());
    expect_gguf_within_bounds(GgufBytes(3, 0, 1).key("k", GgufType::kString).put(absurd).raw(filler).bytes());
    for (std::uint32_t type = 0; type < kNumGgufTypes; ++type) {
      expect_gguf_within_bounds(GgufBytes(3, 0, 1).array("k", static_cast<GgufType>(type), absurd).raw(filler).bytes());
    }
    expect_gguf_within_bounds(GgufBytes(3, 1, 0).tensor("t", {absurd}, 0, absurd).raw(filler).bytes());
  }
}

TEST(Allocations, FilesFullOfSmallThings) {
  constexpr std::uint64_t kMany = 20000;
  GgufBytes entries(3, 0, kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) entries.entry(std::to_string(i), GgufType::kU8, std::uint8_t{1});
  expect_gguf_within_bounds(entries.bytes());
  GgufBytes tensors(3, kMany, 0);
  for (std::uint64_t i = 0; i < kMany; ++i) tensors.tensor(std::to_string(i), {0}, 0, 0);
  EXPECT_EQ(parse_gguf(as_bytes(tensors.bytes()), "x").tensors.size(), kMany);
  expect_gguf_within_bounds(tensors.bytes());
  GgufBytes arrays(3, 0, 1);
  arrays.array("k", GgufType::kArray, kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) arrays.put(0U).put(std::uint64_t{0});
  expect_gguf_within_bounds(arrays.bytes());
  GgufBytes strings(3, 0, 1);
  strings.array("k", GgufType::kString, kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) strings.text("");
  expect_gguf_within_bounds(strings.bytes());
}

TEST(Allocations, Safetensors) {
  const auto expect = [](std::uint64_t length, std::string_view header) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    bytes += header;
    EXPECT_LE(allocated_by(parse_safetensors, bytes), 4 * kFactor * bytes.size() + kMessages) << header.substr(0, 80);
  };
  for (const std::uint64_t absurd : {std::uint64_t{99'000'000}, std::uint64_t{1} << 60, ~std::uint64_t{0}})
    expect(absurd, "{}");
  const std::string deep(100000, '[');
  expect(deep.size(), deep);
  const std::string claims = R"({"t": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}})";
  expect(claims.size(), claims);
  std::string numbers = R"({"t": {"dtype": "F32", "shape": [1)";
  for (int i = 0; i < 50000; ++i) numbers += ",1";
  expect(numbers.size(), numbers);
}

}  // namespace
}  // namespace thalweg::io
