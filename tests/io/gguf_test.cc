#include "io/gguf.h"

#include <cstring>

#include "io/files.h"
#include "io/gguf_bytes.h"
#include "io/gguf_writer.h"

namespace thalweg::io {
namespace {

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i < kNumDTypes; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

std::vector<std::int64_t> shape_of(const ConstTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

TEST(GgufGoldens, ReadsWhatThePythonPackageWrites) {
  const GgufFile file(golden("types.gguf"));
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.alignment(), 64U);
  const GgufMetadata& metadata = file.metadata();
  EXPECT_EQ(metadata.string("general.architecture"), "qwen35moe");
  EXPECT_EQ(*metadata.find("test.u8"), GgufValue(std::uint8_t{200}));
  EXPECT_EQ(*metadata.find("test.i8"), GgufValue(std::int8_t{-100}));
  EXPECT_EQ(*metadata.find("test.u16"), GgufValue(std::uint16_t{60000}));
  EXPECT_EQ(*metadata.find("test.i16"), GgufValue(std::int16_t{-30000}));
  EXPECT_EQ(*metadata.find("test.u32"), GgufValue(std::uint32_t{4000000000}));
  EXPECT_EQ(*metadata.find("test.i32"), GgufValue(std::int32_t{-2000000000}));
  EXPECT_EQ(*metadata.find("test.u64"), GgufValue(std::uint64_t{1} << 63));
  EXPECT_EQ(*metadata.find("test.i64"), GgufValue(-(std::int64_t{1} << 62)));
  EXPECT_EQ(*metadata.find("test.f32"), GgufValue(1.5F));
  EXPECT_EQ(*metadata.find("test.f64"), GgufValue(0.1));
  EXPECT_EQ(*metadata.find("test.bool"), GgufValue(true));
  EXPECT_EQ(metadata.string("test.string"), "snow \xe2\x98\x83");
  EXPECT_EQ(metadata.integers("test.integers"), (std::vector<std::int64_t>{11, 11, 10, 0}));
  EXPECT_EQ(metadata.numbers("test.floats"), (std::vector<float>{0.25F, -2.0F}));
  EXPECT_EQ(metadata.booleans("test.bools"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(metadata.strings("test.strings"), (std::vector<std::string>{"a", "", "ccc"}));

  ASSERT_EQ(file.tensors().size(), static_cast<std::size_t>(kNumDTypes) + 1);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < all_dtypes().size(); ++i) {
    const DType dtype = all_dtypes()[i];
    const std::string name = "tensor." + std::string(dtype_name(dtype));
    const ConstTensor tensor = file.tensor(name);
    EXPECT_EQ(tensor.dtype, dtype) << name;
    const int row = is_block_format(dtype) ? dtype_info(dtype).block_size : 5;
    EXPECT_EQ(shape_of(tensor), (std::vector<std::int64_t>{3, 2, row})) << name;
    EXPECT_EQ(content(tensor), pattern(i, content(tensor).size())) << name;
    EXPECT_EQ(file.names()[i], name);
    bytes += content(tensor).size();
  }
  EXPECT_EQ(file.bytes(), bytes + file.tensors().back().bytes);
  EXPECT_EQ(file.tensors().back().bytes, 2U * 66);
  EXPECT_TRUE(file.has("tensor.foreign"));
  expect_error([&] { file.tensor("tensor.foreign"); }, "tensor tensor.foreign", {"types.gguf", "IQ2_XXS", "16"});
  expect_error([&] { file.tensor("tensor.none"); }, "tensor tensor.none", {"types.gguf", "none of that name among 18"});
}

void open_each(const std::vector<std::string>& parts, const std::vector<std::int64_t>& first_shape) {
  for (const std::string& part : parts) {
    const GgufFile file(golden(part));
    ASSERT_EQ(file.paths().size(), parts.size());
    EXPECT_EQ(file.paths()[1], golden(parts[1]));
    EXPECT_EQ(file.metadata().integer("test.u32"), 7);
    ASSERT_EQ(file.names().size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) {
      const std::string name = "blk." + std::to_string(i) + ".weight";
      EXPECT_EQ(file.names()[i], name);
      const ConstTensor tensor = file.tensor(name);
      const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(i) + 1, 64};
      EXPECT_EQ(shape_of(tensor), i == 0 ? first_shape : shape);
      EXPECT_EQ(content(tensor), pattern(i, (i + 1) * 68));
    }
    double last = 0.0;
    file.prefetch([&](double done) { last = done; });
    EXPECT_EQ(last, 1.0);
  }
}

TEST(GgufGoldens, AnyPartOpensASplitModel) {
  open_each({"split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"}, {1, 64});
}

// Its first part holds metadata only, and an outer dimension of 1 is gone.
TEST(GgufGoldens, AnyPartOpensWhatLlamaCppHasCut) {
  open_each(
      {"tool-00001-of-00004.gguf", "tool-00002-of-00004.gguf", "tool-00003-of-00004.gguf", "tool-00004-of-00004.gguf"},
      {64});
}

TEST(GgufGoldens, TheWriterRepeatsThemToTheByte) {
  const TempFolder folder;
  const std::string path = folder / "again.gguf";
  const GgufFile file(golden("plain.gguf"));
  ASSERT_EQ(file.tensors().size(), static_cast<std::size_t>(kNumDTypes));
  GgufWriter writer(path, file.metadata());
  for (const GgufTensor& tensor : file.tensors()) writer.declare(tensor.name, *tensor.type.dtype, tensor.shape);
  for (const std::string& name : file.names()) {
    const std::string_view data = content(file.tensor(name));
    writer.write(name, data.data(), data.size());
  }
  writer.finish();
  EXPECT_EQ(read_file(path), read_file(golden("plain.gguf")));
}

GgufArray array_of(GgufArray::Elements elements) { return {std::move(elements)}; }

GgufMetadata sample_metadata() {
  using Nested = std::vector<GgufArray>;
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string("qwen3next"));
  metadata.set("u8", std::uint8_t{255});
  metadata.set("i8", std::int8_t{-128});
  metadata.set("u16", std::uint16_t{65535});
  metadata.set("i16", std::int16_t{-32768});
  metadata.set("u32", std::uint32_t{0xFFFFFFFF});
  metadata.set("i32", std::int32_t{-5});
  metadata.set("f32", 1e-6F);
  metadata.set("bool", false);
  metadata.set("string", std::string("a\0\xff\n", 4));
  metadata.set("empty string", std::string());
  metadata.set("u64", ~std::uint64_t{0});
  metadata.set("i64", std::int64_t{-6});
  metadata.set("f64", 1e300);
  metadata.set("a u8", array_of(std::vector<std::uint8_t>{1, 2, 3}));
  metadata.set("a i8", array_of(std::vector<std::int8_t>{-1, 2}));
  metadata.set("a u16", array_of(std::vector<std::uint16_t>{65535}));
  metadata.set("a i16", array_of(std::vector<std::int16_t>{-3, 4}));
  metadata.set("a u32", array_of(std::vector<std::uint32_t>{7}));
  metadata.set("a i32", array_of(std::vector<std::int32_t>{-7, 8}));
  metadata.set("a f32", array_of(std::vector<float>{0.5F, -0.0F}));
  metadata.set("a bool", array_of(std::vector<bool>{true, false, true}));
  metadata.set("a string", array_of(std::vector<std::string>{"x", std::string("\0", 1), ""}));
  metadata.set("a u64", array_of(std::vector<std::uint64_t>{~std::uint64_t{0}}));
  metadata.set("a i64", array_of(std::vector<std::int64_t>{-9}));
  metadata.set("a f64", array_of(std::vector<double>{0.1, 0.2}));
  metadata.set("a nothing", array_of(std::vector<std::uint32_t>{}));
  metadata.set("a array",
               array_of(Nested{array_of(std::vector<std::int32_t>{1, 2}), array_of(std::vector<std::string>{"y"}),
                               array_of(Nested{array_of(std::vector<bool>{true})})}));
  return metadata;
}

TEST(GgufWriter, MetadataOfEachTypeComesBack) {
  const TempFolder folder;
  const std::string path = folder / "metadata.gguf";
  GgufMetadata metadata = sample_metadata();
  GgufWriter(path, metadata).finish();
  const GgufFile file(path);
  EXPECT_EQ(file.metadata().entries(), metadata.entries());
  EXPECT_EQ(file.tensors().size(), 0U);
  EXPECT_EQ(file.bytes(), 0U);
  file.prefetch({});
}

TEST(GgufWriter, LayoutKeysAreItsOwn) {
  const TempFolder folder;
  const std::string path = folder / "copy.gguf";
  GgufWriter writer(path, GgufFile(golden("split-00001-of-00003.gguf")).metadata());
  writer.declare("x", DType::kF32, {1});
  writer.write("x", "1234", 4);
  writer.finish();
  const GgufFile file(path);
  EXPECT_FALSE(file.metadata().has("split.count"));
  EXPECT_EQ(file.metadata().integer("test.u32"), 7);
  EXPECT_EQ(content(file.tensor("x")), "1234");

  GgufWriter aligned(path, GgufFile(golden("types.gguf")).metadata());
  aligned.finish();
  EXPECT_EQ(GgufFile(path).alignment(), 32U);
}

TEST(GgufWriter, TensorsOfEveryTypeAndShapeComeBack) {
  const TempFolder folder;
  const std::string path = folder / "tensors.gguf";
  struct Case {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  std::vector<Case> cases;
  for (const DType dtype : all_dtypes()) {
    const std::int64_t block = dtype_info(dtype).block_size;
    const std::string name(dtype_name(dtype));
    cases.push_back({name + ".odd", dtype, {3, block}});
    cases.push_back({name + ".empty", dtype, {0, block}});
    cases.push_back({name + ".rank1", dtype, {5 * block}});
    cases.push_back({name + ".rank4", dtype, {2, 1, 3, 2 * block}});
    cases.push_back({name + ".empty row", dtype, {7, 0}});
  }
  std::vector<double> progress;
  GgufWriter writer(path, {}, [&](double done) { progress.push_back(done); });
  for (const Case& test : cases) writer.declare(test.name, test.dtype, test.shape);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& test = cases[i];
    std::int64_t count = 1;
    for (const std::int64_t extent : test.shape) count *= extent;
    const std::string data = pattern(i, static_cast<std::size_t>(bytes_of(test.dtype, count)));
    const std::size_t half = data.size() / 2;
    writer.write(test.name, data.data(), half);
    writer.write(test.name, data.data() + half, data.size() - half);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  for (std::size_t i = 1; i < progress.size(); ++i) EXPECT_GE(progress[i], progress[i - 1]);
  EXPECT_EQ(progress.back(), 1.0);

  const GgufFile file(path);
  EXPECT_EQ(std::filesystem::file_size(path) % 32, 0U);
  ASSERT_EQ(file.tensors().size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const ConstTensor tensor = file.tensor(cases[i].name);
    EXPECT_EQ(tensor.dtype, cases[i].dtype);
    EXPECT_EQ(shape_of(tensor), cases[i].shape) << cases[i].name;
    EXPECT_EQ(content(tensor), pattern(i, content(tensor).size())) << cases[i].name;
    EXPECT_TRUE(tensor.size() == 0 || file.tensors()[i].offset % 32 == 0) << cases[i].name;
  }
}

TEST(GgufWriter, RefusesMisuse) {
  const TempFolder folder;
  const std::string path = folder / "bad.gguf";
  {
    GgufWriter writer(path, {});
    writer.declare("a", DType::kF32, {2});
    writer.declare("b", DType::kQ4_K, {2, 256});
    const auto declare = [&](const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
      return [&writer, name, dtype, shape] { writer.declare(name, dtype, shape); };
    };
    expect_error(declare("a", DType::kF32, {2}), "tensor a", {path, "twice"});
    expect_error(declare("", DType::kF32, {2}), "tensor ", {"1 to 63 bytes"});
    expect_error(declare(std::string(64, 'n'), DType::kF32, {2}), "tensor " + std::string(64, 'n'), {"64 bytes"});
    expect_error(declare("c", DType::kF32, {}), "tensor c", {"1 to 4 dimensions"});
    expect_error(declare("c", DType::kF32, {1, 1, 1, 1, 1}), "tensor c", {"1 to 4 dimensions"});
    expect_error(declare("c", DType::kF32, {-1}), "tensor c", {"-1"});
    expect_error(declare("c", DType::kF32, {std::int64_t{1} << 40, std::int64_t{1} << 40}), "tensor c", {"2^57"});
    expect_error(declare("c", DType::kQ4_K, {2, 128}), "tensor c", {"256", "Q4_K", "rows of 128"});
    const std::string data(288, 'x');
    expect_error([&] { writer.write("c", data.data(), 8); }, "tensor c", {"declared"});
    expect_error([&] { writer.write("b", data.data(), 8); }, "tensor b", {"before all of a"});
    expect_error([&] { writer.write("a", data.data(), 9); }, "tensor a", {"8 bytes in all", "1 more"});
    writer.write("a", data.data(), 8);
    expect_error(declare("c", DType::kF32, {2}), "tensor c", {"after it"});
    expect_error([&] { writer.write("a", data.data(), 1); }, "tensor a", {"order of declaration"});
    writer.write("b", data.data(), 100);
    expect_error([&] { writer.finish(); }, "tensor b", {"288 bytes", "100"});
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Gguf, ReadsVersion2) {
  const TempFolder folder;
  const std::string path = folder / "v2.gguf";
  GgufBytes file(2, 2, 2);
  file.entry("general.architecture", "qwen3next").entry("n", GgufType::kI32, std::int32_t{-3});
  file.tensor("t", {3, 2}, 0, 0).tensor("scalar", {}, 26, 32).align().raw(pattern(0, 24)).align().raw(pattern(1, 4));
  write_file(path, file.bytes());
  const GgufFile model(path);
  EXPECT_EQ(model.version(), 2U);
  EXPECT_EQ(model.metadata().integer("n"), -3);
  EXPECT_EQ(shape_of(model.tensor("t")), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(content(model.tensor("t")), pattern(0, 24));
  EXPECT_EQ(shape_of(model.tensor("scalar")), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(content(model.tensor("scalar")), pattern(1, 4));
}

TEST(Gguf, TypesWithoutASizeAreListed) {
  GgufBytes bytes(3, 1, 0);
  bytes.tensor("new", {7}, 77, 0).align().raw("1234");
  const GgufHeader header = parse_gguf(as_bytes(bytes.bytes()), "new.gguf");
  EXPECT_EQ(header.tensors[0].type.name, "type 77");
  EXPECT_EQ(header.tensors[0].type.number, 77U);
  EXPECT_EQ(header.tensors[0].bytes, 0U);
  const TempFolder folder;
  write_file(folder / "new.gguf", bytes.bytes());
  const GgufFile file(folder / "new.gguf");
  EXPECT_TRUE(file.has("new"));
  expect_error([&] { file.tensor("new"); }, "tensor new", {"new.gguf", "type 77"});
}

TEST(GgufMetadata, AccessorsConvertAndName) {
  GgufMetadata metadata("m.gguf");
  const GgufMetadata sample = sample_metadata();
  for (const auto& [key, value] : sample.entries()) metadata.set(key, value);
  for (const auto& [key, expected] : std::vector<std::pair<std::string, std::int64_t>>{
           {"u8", 255}, {"i8", -128}, {"u16", 65535}, {"i16", -32768}, {"u32", 0xFFFFFFFF}, {"i32", -5}, {"i64", -6}}) {
    EXPECT_EQ(metadata.integer(key), expected);
    EXPECT_EQ(metadata.number(key), static_cast<double>(expected));
  }
  EXPECT_EQ(metadata.number("f32"), static_cast<double>(1e-6F));
  EXPECT_EQ(metadata.number("f64"), 1e300);
  EXPECT_EQ(metadata.boolean("bool"), false);
  EXPECT_EQ(metadata.boolean("none", true), true);
  EXPECT_EQ(metadata.integer("none", std::int64_t{4}), 4);
  EXPECT_EQ(metadata.number("none", 0.5), 0.5);
  EXPECT_EQ(metadata.string("none", "fallback"), "fallback");
  EXPECT_EQ(metadata.string("general.architecture", "fallback"), "qwen3next");
  EXPECT_EQ(metadata.integers("a i8"), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_EQ(metadata.numbers("a f64"), (std::vector<float>{0.1F, 0.2F}));
  EXPECT_TRUE(metadata.is_array("a u8"));
  EXPECT_FALSE(metadata.is_array("u8"));
  EXPECT_FALSE(metadata.is_array("none"));

  expect_error([&] { metadata.integer("none"); }, "key none", {"m.gguf", "an integer", "no such key"});
  expect_error([&] { metadata.integer("u64"); }, "key u64", {"below 2^63", "18446744073709551615"});
  expect_error([&] { metadata.integer("f32"); }, "key f32", {"an integer", "got f32"});
  expect_error([&] { metadata.integer("string", std::int64_t{1}); }, "key string", {"got string"});
  expect_error([&] { metadata.integer("a u8"); }, "key a u8", {"got array of 3 u8"});
  expect_error([&] { metadata.number("bool"); }, "key bool", {"a number", "got bool"});
  expect_error([&] { metadata.boolean("u8"); }, "key u8", {"a bool", "got u8"});
  expect_error([&] { metadata.string("u8"); }, "key u8", {"a string", "got u8"});
  expect_error([&] { metadata.integers("u8"); }, "key u8", {"an array of integers", "got u8"});
  expect_error([&] { metadata.integers("a u64"); }, "key a u64", {"the element 18446744073709551615"});
  expect_error([&] { metadata.integers("a f32"); }, "key a f32", {"got array of 2 f32"});
  expect_error([&] { metadata.numbers("a bool"); }, "key a bool", {"got array of 3 bool"});
  expect_error([&] { metadata.booleans("a u8"); }, "key a u8", {"an array of bool", "got array of 3 u8"});
  expect_error([&] { metadata.strings("a array"); }, "key a array", {"an array of strings", "got array of 3 array"});

  metadata.erase("i8");
  EXPECT_FALSE(metadata.has("i8"));
  EXPECT_EQ(metadata.integer("u16"), 65535);
  EXPECT_EQ(metadata.integer("u8"), 255);
  metadata.set("u8", std::int32_t{-1});
  EXPECT_EQ(metadata.integer("u8"), -1);
  EXPECT_FALSE(metadata.add("u8", true));
}

}  // namespace
}  // namespace thalweg::io
