// Damaged, truncated and invalid files: an Error that names key or tensor, or a header whose tensors lie in the file.

#include <cstdlib>
#include <cstring>

#include "io/files.h"
#include "io/gguf.h"
#include "io/gguf_bytes.h"

namespace thalweg::io {
namespace {

constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kQ8_0 = 8;

// Memory of exactly the file's size, so that AddressSanitizer sees every read past its end.
GgufHeader parse(std::string_view bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return parse_gguf(std::as_bytes(std::span(exact)), "made.gguf");
}

void expect_refused(const GgufBytes& file, std::string_view argument, std::initializer_list<std::string_view> parts) {
  expect_error([&] { parse(file.bytes()); }, argument, parts);
}

std::string small_file() {
  GgufBytes file(3, 3, 5);
  file.entry("general.architecture", "qwen35");
  file.entry("count", GgufType::kU32, std::uint32_t{5});
  file.entry("flag", GgufType::kBool, std::uint8_t{1});
  file.array("tokens", GgufType::kString, 2).text("ab").text("");
  file.array("nested", GgufType::kArray, 1).put(std::uint32_t{4}).put(std::uint64_t{2}).put(1U).put(2U);
  file.tensor("a", {3, 2}, kF32, 0).tensor("b", {32}, kQ8_0, 32).tensor("c", {1}, kF32, 96);
  file.align().raw(pattern(0, 24)).align().raw(pattern(1, 34)).align().raw("1234");
  return file.bytes();
}

// True if it was read; then every tensor lies inside.
bool survives(std::string_view bytes) {
  try {
    const GgufHeader header = parse(bytes);
    for (const GgufTensor& tensor : header.tensors) {
      EXPECT_LE(tensor.offset, bytes.size());
      EXPECT_LE(tensor.bytes, bytes.size() - tensor.offset);
      if (tensor.type.dtype) {
        const ConstTensor view = contiguous_view(nullptr, *tensor.type.dtype, tensor.shape);
        EXPECT_EQ(static_cast<std::uint64_t>(bytes_of(view.dtype, view.size())), tensor.bytes);
      }
    }
    return true;
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_TRUE(message.starts_with("made.gguf: ")) << message;
    EXPECT_FALSE(error.argument().empty()) << message;
    return false;
  }
}

TEST(GgufDamage, EveryTruncationIsRefused) {
  const std::string whole = small_file();
  ASSERT_TRUE(survives(whole));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(survives(std::string_view(whole).substr(0, length))) << length;
  }
}

TEST(GgufDamage, EveryTruncationOfAGoldenIsRefused) {
  const std::string whole = read_file(golden("types.gguf"));
  // The last tensor of 132 bytes is padded.
  const GgufHeader header = parse(whole);
  const std::size_t end = header.tensors.back().offset + header.tensors.back().bytes;
  ASSERT_LE(end, whole.size());
  for (std::size_t length = 0; length < end; length += length < 2048 ? 1 : 37) {
    EXPECT_FALSE(survives(std::string_view(whole).substr(0, length))) << length;
  }
}

TEST(GgufDamage, FlippedBytesAreRefusedOrHarmless) {
  const std::string whole = small_file();
  const std::size_t header = parse(whole).tensors[0].offset;
  int refused = 0;
  for (std::size_t i = 0; i < header; ++i) {
    for (const int mask : {0x01, 0x02, 0x08, 0x10, 0x40, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      refused += survives(damaged) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(GgufDamage, EveryFieldThatClaimsTooMuchIsRefused) {
  const std::string whole = small_file();
  const std::size_t header = parse(whole).tensors[0].offset;
  // An absurd 8-byte number at every offset.
  for (const std::uint64_t absurd : {std::uint64_t{1} << 60, ~std::uint64_t{0}, std::uint64_t{1} << 63,
                                     (std::uint64_t{1} << 63) - 1, std::uint64_t{0}, std::uint64_t{1} << 31}) {
    for (std::size_t i = 4; i + 8 <= header; ++i) {
      std::string damaged = whole;
      std::memcpy(damaged.data() + i, &absurd, 8);
      survives(damaged);
    }
  }
}

TEST(GgufDamage, Headers) {
  expect_error([] { parse(""); }, "header", {"made.gguf", "4 more bytes", "the file's end after 0"});
  expect_error([] { parse("GGML\3\0\0\0abcdefghijklmnop"); }, "header", {"starts with GGUF", "GGML"});
  expect_error([] { parse("\x1b]0;\3\0\0\0abcdefghijklmnop"); }, "header", {"\\x1b]0;"});
  expect_refused(GgufBytes(1), "header", {"version 2 or 3", "version 1"});
  expect_refused(GgufBytes(4), "header", {"version 2 or 3", "version 4"});
  expect_refused(GgufBytes(0), "header", {"version 2 or 3", "version 0"});
  expect_refused(GgufBytes(0x03000000), "header", {"little-endian", "big-endian"});
  expect_refused(GgufBytes(3, std::uint64_t{1} << 60, 0), "header", {"tensors", "1152921504606846976"});
  expect_refused(GgufBytes(3, 0, std::uint64_t{1} << 60), "header", {"metadata entries", "1152921504606846976"});
  expect_refused(GgufBytes(3, ~std::uint64_t{0}, ~std::uint64_t{0}), "header", {"tensors"});
  expect_refused(GgufBytes(3, 1, 0), "header", {"at most 0 tensors", "got 1"});
}

TEST(GgufDamage, Metadata) {
  const std::string filler(64, '\0');
  const auto file = [](std::uint64_t entries = 1) { return GgufBytes(3, 0, entries); };
  expect_refused(file().put(std::uint64_t{1} << 60).raw(filler), "metadata entry 1 of 1", {"1152921504606846976 more"});
  expect_refused(file().text("").put(4U).put(1U), "metadata entry 1 of 1", {"an empty one"});
  expect_refused(file().text("k").put(13U).raw(filler), "key k", {"a value type below 13", "13"});
  expect_refused(file().text("k").put(0xFFFFFFFFU).raw(filler), "key k", {"4294967295"});
  expect_refused(file().text("k").put(12U).put(1U), "key k", {"8 more bytes", "end after 4"});
  expect_refused(file().entry("k", GgufType::kBool, std::uint8_t{2}), "key k", {"a bool of 0 or 1", "2"});
  expect_refused(file().key("k", GgufType::kString).put(~std::uint64_t{0}).raw(filler), "key k", {"more bytes"});
  expect_refused(file(2).entry("k", GgufType::kU8, std::uint8_t{2}).entry("k", "v"), "key k", {"once", "twice"});
  for (const GgufType type : {GgufType::kU8, GgufType::kF64, GgufType::kString, GgufType::kBool, GgufType::kArray}) {
    for (const std::uint64_t count : {std::uint64_t{1} << 60, ~std::uint64_t{0}, std::uint64_t{1} << 61}) {
      expect_refused(file().array("k", type, count).raw(filler), "key k", {"array elements", std::to_string(count)});
    }
  }
  expect_refused(file().array("k", GgufType::kBool, 3).raw(std::string_view("\1\0\3", 3)), "key k", {"0 or 1", "3"});
  expect_refused(file().array("k", static_cast<GgufType>(99), 1).raw(filler), "key k", {"99"});
  expect_refused(file().array("k", GgufType::kString, 2).text("a").put(std::uint64_t{50}), "key k", {"50 more bytes"});

  GgufBytes deep = file();
  deep.array("k", GgufType::kArray, 1);
  for (int i = 0; i < 100000; ++i) deep.put(9U).put(std::uint64_t{1});
  expect_refused(deep.raw(filler), "key k", {"nested at most 8 deep"});
  GgufBytes shallow = file();
  shallow.array("k", GgufType::kArray, 1);
  for (int i = 0; i < 6; ++i) shallow.put(9U).put(std::uint64_t{1});
  shallow.put(0U).put(std::uint64_t{0});
  EXPECT_EQ(parse(shallow.bytes()).metadata.entries().size(), 1U);

  for (const std::uint32_t alignment : {0U, 1U, 4U, 33U, 48U, 0xFFFFFFFFU}) {
    expect_refused(file().entry("general.alignment", GgufType::kU32, alignment), "key general.alignment",
                   {"a power of two", std::to_string(alignment)});
  }
  expect_refused(file().entry("general.alignment", "32"), "key general.alignment", {"an integer", "string"});
}

TEST(GgufDamage, Tensors) {
  const std::string data(256, 'd');
  const auto one = [&](std::string_view name, const std::vector<std::uint64_t>& extents, std::uint32_t type,
                       std::uint64_t offset) {
    return GgufBytes(3, 1, 0).tensor(name, extents, type, offset).align().raw(data);
  };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  ASSERT_EQ(parse(one("t", {64}, kF32, 0).bytes()).tensors.size(), 1U);
  expect_refused(one("", {4}, kF32, 0), "tensor 1 of 1", {"an empty one"});
  expect_refused(one("t", {65}, kF32, 0), "tensor t", {"260 bytes at offset 0", "256 bytes", "cut off"});
  expect_refused(one("t", {64}, kF32, 32), "tensor t", {"offset 32"});
  expect_refused(one("t", {4}, kF32, 256), "tensor t", {"offset 256"});
  expect_refused(one("t", {4}, kF32, 16), "tensor t", {"a multiple of 32", "16"});
  expect_refused(one("t", {4}, kF32, kHuge), "tensor t", {std::to_string(kHuge)});
  expect_refused(one("t", {4}, kF32, ~std::uint64_t{0} - 31), "tensor t", {"18446744073709551584"});
  expect_refused(one("t", {kHuge}, kF32, 0), "tensor t", {"4611686018427387904 bytes"});
  expect_refused(one("t", {~std::uint64_t{0}}, kF32, 0), "tensor t", {"2^63 elements", "18446744073709551615"});
  expect_refused(one("t", {kHuge, 16}, kF32, 0), "tensor t", {"2^63 elements"});
  expect_refused(one("t", {std::uint64_t{1} << 32, std::uint64_t{1} << 32}, kF32, 0), "tensor t", {"2^63 elements"});
  expect_refused(one("t", {0, std::uint64_t{1} << 62, 4}, kF32, 0), "tensor t", {"2^63 elements"});
  expect_refused(one("t", {std::uint64_t{1} << 62}, 28, 0), "tensor t", {"2^64 bytes"});  // f64
  expect_refused(one("t", {1, 1, 1, 1, 1}, kF32, 0), "tensor t", {"at most 4 dimensions", "5"});
  expect_refused(one("t", {33}, kQ8_0, 0), "tensor t", {"a multiple of 32 for Q8_0", "rows of 33"});
  expect_refused(one("t", {128, 2}, 12, 0), "tensor t", {"a multiple of 256 for Q4_K", "rows of 128"});
  expect_refused(one("t", {4}, 77, 512), "tensor t", {"offset 512"});  // a type without a known size
  expect_refused(one("t", {4}, 77, 256), "tensor t", {"offset 256"});
  GgufBytes cut(3, 1, 0);
  cut.tensor("t", {4}, 77, 0);
  ASSERT_NE(cut.bytes().size() % 32, 0U);
  expect_refused(cut, "tensor t", {"data of 0 bytes"});

  GgufBytes twice(3, 2, 0);
  expect_refused(twice.tensor("t", {4}, kF32, 0).tensor("t", {4}, kF32, 32).align().raw(data), "tensor t",
                 {"it twice"});
  GgufBytes overlap(3, 2, 0);
  overlap.tensor("late", {4}, kF32, 32).tensor("early", {9}, kF32, 0).align().raw(data);
  expect_refused(overlap, "tensor late", {"lie apart", "overlaps early"});
  GgufBytes rank(3, 1, 0);
  expect_refused(rank.text("t").put(0xFFFFFFFFU).raw(data), "tensor t", {"at most 4 dimensions", "4294967295"});
  // A name of control characters does not reach the terminal.
  expect_refused(one("\x1b[2J", {65}, kF32, 0), "tensor \\x1b[2J", {"260 bytes"});
}

class GgufSplit : public testing::Test {
 protected:
  struct Part {
    std::uint16_t number = 0;
    std::uint16_t count = 2;
    std::int32_t tensors = 2;
    std::string tensor = "t";
    std::string architecture = "qwen35";
  };

  std::string path(int part) const { return folder_ / ("m-0000" + std::to_string(part) + "-of-00002.gguf"); }

  void write(const std::string& to, const Part& part) {
    GgufBytes file(3, 1, 4);
    file.entry("general.architecture", part.architecture);
    file.entry("split.no", GgufType::kU16, part.number).entry("split.count", GgufType::kU16, part.count);
    file.entry("split.tensors.count", GgufType::kI32, part.tensors);
    file.tensor(part.tensor, {1}, kF32, 0).align().raw("1234");
    write_file(to, file.bytes());
  }

  void SetUp() override {
    first_.tensor = "t0";
    second_.tensor = "t1";
    second_.number = 1;
    write(path(1), first_);
    write(path(2), second_);
  }

  TempFolder folder_;
  Part first_, second_;
};

TEST_F(GgufSplit, BothPartsOpen) {
  for (const int part : {1, 2}) EXPECT_EQ(GgufFile(path(part)).names(), (std::vector<std::string>{"t0", "t1"}));
}

TEST_F(GgufSplit, APartThatIsMissingIsNamed) {
  std::filesystem::remove(path(2));
  expect_error([&] { GgufFile{path(1)}; }, "file", {path(2), "No such file"});
}

TEST_F(GgufSplit, PartsMustAgree) {
  const auto expect = [&](int given, std::string_view argument, std::initializer_list<std::string_view> parts) {
    expect_error([&] { GgufFile{path(given)}; }, argument, parts);
  };
  Part wrong = second_;
  wrong.number = 0;
  write(path(2), wrong);
  expect(1, "key split.no", {path(2), "expected 1, got 0"});
  expect(2, "file", {path(2), "ends in -00001-of-00002.gguf"});
  wrong = second_;
  wrong.count = 3;
  write(path(2), wrong);
  expect(1, "key split.count", {path(2), "expected 2, got 3"});
  wrong = second_;
  wrong.tensors = 3;
  write(path(2), wrong);
  expect(1, "key split.tensors.count", {path(2), "expected 2, got 3"});
  wrong = second_;
  wrong.tensor = "t0";
  write(path(2), wrong);
  expect(1, "tensor t0", {path(2), "it in two"});
  wrong = second_;
  wrong.architecture = "llama";
  write(path(2), wrong);
  expect(1, "key general.architecture", {path(2), "qwen35", "llama"});
  wrong = second_;
  wrong.number = 2;
  write(path(2), wrong);
  expect(2, "key split.no", {path(2), "0 to 1", "got 2"});
}

TEST_F(GgufSplit, NamesAndCountsMustFit) {
  const std::string renamed = folder_ / "model.gguf";
  write(renamed, first_);
  expect_error([&] { GgufFile{renamed}; }, "file", {"ends in -00001-of-00002.gguf", "model.gguf"});
  first_.count = 1;  // the only part, whatever its name
  write(renamed, first_);
  EXPECT_TRUE(GgufFile(renamed).has("t0"));
  GgufBytes negative(3, 0, 1);
  write_file(renamed, negative.entry("split.count", GgufType::kI64, std::int64_t{-1}).bytes());
  expect_error([&] { GgufFile{renamed}; }, "key split.count", {"-1"});
  GgufBytes absurd(3, 0, 1);
  write_file(renamed, absurd.entry("split.count", GgufType::kU64, std::uint64_t{1} << 60).bytes());
  expect_error([&] { GgufFile{renamed}; }, "key split.count", {"1152921504606846976"});
}

}  // namespace
}  // namespace thalweg::io
