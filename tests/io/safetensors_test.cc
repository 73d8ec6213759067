#include "io/safetensors.h"

#include <cstring>

#include "io/files.h"

namespace thalweg::io {
namespace {

std::vector<std::int64_t> shape_of(const ConstTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

std::string file_of(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(header).append(data);
}

SafetensorsHeader parse(std::string_view bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return parse_safetensors(std::as_bytes(std::span(exact)), "made.safetensors");
}

void expect_refused(std::string_view header, std::string_view argument, std::initializer_list<std::string_view> parts,
                    std::size_t data = 8) {
  expect_error([&] { parse(file_of(header, std::string(data, 'd'))); }, argument, parts);
}

TEST(SafetensorsGoldens, ReadsWhatThePythonPackageWrites) {
  const SafetensorsFile file(golden("types.safetensors"));
  EXPECT_EQ(file.metadata(), (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
  struct Case {
    const char* name;
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  const std::vector<Case> cases = {{"f32", DType::kF32, {2, 3}},      {"f16", DType::kF16, {5}},
                                   {"bf16", DType::kBF16, {2, 1, 4}}, {"i32", DType::kI32, {3}},
                                   {"scalar", DType::kF32, {1}},      {"empty", DType::kF32, {0, 7}}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const ConstTensor tensor = file.tensor(cases[i].name);
    EXPECT_EQ(tensor.dtype, cases[i].dtype);
    EXPECT_EQ(shape_of(tensor), cases[i].shape) << cases[i].name;
    EXPECT_EQ(content(tensor), pattern(i, content(tensor).size())) << cases[i].name;
  }
  for (const auto& [name, type] : std::vector<std::pair<std::string, std::string>>{
           {"i64", "I64"}, {"u8", "U8"}, {"bool", "BOOL"}, {"f64", "F64"}, {"f8", "F8_E4M3"}}) {
    EXPECT_TRUE(file.has(name));
    expect_error([&, name = name] { file.tensor(name); }, "tensor " + name,
                 {"types.safetensors", "F32, F16, BF16 or I32", type});
  }
  expect_error([&] { file.tensor("rank6"); }, "tensor rank6", {"at most 5 dimensions", "6"});
  expect_error([&] { file.tensor("none"); }, "tensor none", {"types.safetensors", "none of that name among 12"});
  EXPECT_EQ(file.names().size(), 12U);
  EXPECT_EQ(file.bytes(), 24U + 10 + 16 + 12 + 4 + 0 + 16 + 3 + 2 + 8 + 4 + 8);
}

TEST(SafetensorsGoldens, ReadsShards) {
  for (const char* path : {"sharded", "sharded/model.safetensors.index.json"}) {
    const SafetensorsFile file(golden(path));
    ASSERT_EQ(file.paths().size(), 2U);
    EXPECT_EQ(content(file.tensor("embed.weight")), pattern(0, 24));
    EXPECT_EQ(content(file.tensor("norm")), pattern(1, 12));
    EXPECT_EQ(content(file.tensor("head.weight")), pattern(2, 24));
    EXPECT_EQ(file.bytes(), 60U);
    double last = 0.0;
    file.prefetch([&](double done) { last = done; });
    EXPECT_EQ(last, 1.0);
  }
  EXPECT_EQ(SafetensorsFile(golden("sharded/model-00002-of-00002.safetensors")).names(),
            std::vector<std::string>{"head.weight"});
}

TEST(Safetensors, WhatIsWrittenComesBack) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::vector<std::pair<DType, std::vector<std::int64_t>>> cases = {
      {DType::kBF16, {3}}, {DType::kF32, {2, 3}}, {DType::kF16, {1, 1, 5}}, {DType::kI32, {4}}, {DType::kF32, {0, 2}}};
  std::vector<std::string> data;
  std::vector<std::pair<std::string, ConstTensor>> tensors;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ConstTensor view = contiguous_view(nullptr, cases[i].first, cases[i].second);
    data.push_back(pattern(i, static_cast<std::size_t>(bytes_of(view.dtype, view.size()))));
    tensors.emplace_back("t" + std::to_string(i), view);
  }
  for (std::size_t i = 0; i < cases.size(); ++i) tensors[i].second.data = data[i].data();
  write_safetensors(path, tensors, {{"key", "value \"quoted\""}});
  const SafetensorsFile file(folder.path().string());
  EXPECT_EQ(file.metadata()[0].second, "value \"quoted\"");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const ConstTensor tensor = file.tensor("t" + std::to_string(i));
    EXPECT_EQ(tensor.dtype, cases[i].first);
    EXPECT_EQ(shape_of(tensor), cases[i].second);
    EXPECT_EQ(content(tensor), data[i]);
  }
  tensors.push_back(tensors[0]);
  expect_error([&] { write_safetensors(path, tensors); }, "tensor t0", {"once"});
  tensors.back() = {"q", ConstTensor(data[0].data(), DType::kQ8_0, {32}, kCpu)};
  expect_error([&] { write_safetensors(path, tensors); }, "tensor q", {"Q8_0"});
}

TEST(Safetensors, FoldersSayWhatTheyLack) {
  const TempFolder folder;
  expect_error([&] { SafetensorsFile{folder.path().string()}; }, "folder",
               {folder.path().string(), "model.safetensors.index.json", "neither"});
  expect_error([&] { SafetensorsFile{folder / "none.safetensors"}; }, "file", {"none.safetensors", "No such file"});
}

TEST(Safetensors, IndexesMustAgreeWithTheFiles) {
  const TempFolder folder;
  const float value = 1.0F;
  write_safetensors(folder / "one.safetensors", {{"a", ConstTensor(&value, DType::kF32, {1}, kCpu)},
                                                 {"unused", ConstTensor(&value, DType::kF32, {1}, kCpu)}});
  const std::string path = folder / "model.safetensors.index.json";
  const auto expect = [&](std::string_view index, std::string_view argument,
                          std::initializer_list<std::string_view> parts) {
    write_file(path, index);
    expect_error([&] { SafetensorsFile{folder.path().string()}; }, argument, parts);
  };
  write_file(path, R"({"weight_map": {"a": "one.safetensors"}})");
  EXPECT_EQ(SafetensorsFile(path).names(), std::vector<std::string>{"a"});
  expect(R"({"weight_map": {"b": "one.safetensors"}})", "tensor b", {"one.safetensors", "as the index says"});
  expect(R"({"weight_map": {"a": "two.safetensors"}})", "file", {"two.safetensors", "No such file"});
  expect(R"({"weight_map": {"a": "../one.safetensors"}})", "tensor a", {path, "beside the index"});
  expect(R"({"weight_map": {"a": ".."}})", "tensor a", {"beside the index"});
  expect(R"({"weight_map": {"a": "one.safetensors\u0000"}})", "tensor a", {"beside the index"});
  expect(R"({"weight_map": {"a": 1}})", "key weight_map.a", {path, "a string", "got 1"});
  expect(R"({"weight_map": {"a": "x", "a": "y"}})", "key a", {path, "twice"});
  expect(R"({"weight_map": []})", "key weight_map", {path, "an object", "an array"});
  expect(R"({})", "key weight_map", {path, "an object", "no such key"});
  expect(R"([])", "text", {path, "a JSON object", "an array"});
  expect(R"({"weight_map")", "text", {path, "JSON"});
}

TEST(SafetensorsDamage, EveryTruncationIsRefused) {
  const std::string whole = read_file(golden("types.safetensors"));
  ASSERT_EQ(parse(whole).tensors.size(), 12U);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(parse(std::string_view(whole).substr(0, length)), Error) << length;
  }
  EXPECT_THROW(parse(whole + "x"), Error);
}

TEST(SafetensorsDamage, FlippedBytesAreRefusedOrHarmless) {
  const std::string whole = read_file(golden("types.safetensors"));
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  int refused = 0;
  for (std::size_t i = 0; i < 8 + header; ++i) {
    for (const int mask : {0x01, 0x02, 0x04, 0x10, 0x20, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      try {
        for (const SafetensorsTensor& tensor : parse(damaged).tensors) {
          EXPECT_LE(tensor.offset, whole.size());
          EXPECT_LE(tensor.bytes, whole.size() - tensor.offset);
        }
      } catch (const Error& error) {
        EXPECT_TRUE(std::string_view(error.what()).starts_with("made.safetensors: ")) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(SafetensorsDamage, Headers) {
  expect_error([] { parse("1234567"); }, "header", {"made.safetensors", "at least 8 bytes", "7"});
  expect_error([] { parse("\xff\xff\xff\xff\xff\xff\xff\xff{}"); }, "header",
               {"at most 2 bytes", "18446744073709551615"});
  expect_error([] { parse(std::string("\3\0\0\0\0\0\0\0{}", 10)); }, "header", {"at most 2 bytes", "3"});
  expect_refused("", "header", {"JSON"}, 0);
  expect_refused("{", "header", {"JSON"}, 0);
  expect_refused("{}x", "header", {"JSON"}, 0);
  expect_refused("[]", "header", {"a JSON object", "an array"}, 0);
  expect_refused("\"\xff\"", "header", {"JSON"}, 0);
  expect_refused("{}", "data", {"0 bytes", "8"});
  expect_refused(std::string(100000, '['), "header", {"nested at most 64 deep"}, 0);
  EXPECT_TRUE(parse(file_of("{}   ", "")).tensors.empty());
  expect_refused(R"({"__metadata__": 3})", "key __metadata__", {"an object"}, 0);
  expect_refused(R"({"__metadata__": {"a": 3}})", "key __metadata__.a", {"a string", "3"}, 0);
}

TEST(SafetensorsDamage, Tensors) {
  const auto expect = [](const std::string& tensor, std::initializer_list<std::string_view> parts) {
    expect_refused("{\"t\": " + tensor + "}", "tensor t", parts);
  };
  ASSERT_EQ(
      parse(file_of(R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", "12345678")).tensors.size(),
      1U);
  expect("3", {"an object", "3"});
  expect(R"({"shape": [2], "data_offsets": [0, 8]})", {"the key dtype"});
  expect(R"({"dtype": "F32", "data_offsets": [0, 8]})", {"the key shape"});
  expect(R"({"dtype": "F32", "shape": [2]})", {"the key data_offsets"});
  expect(R"({"dtype": 32, "shape": [2], "data_offsets": [0, 8]})", {"a string as dtype", "32"});
  expect(R"({"dtype": "F32", "shape": 2, "data_offsets": [0, 8]})", {"an array as shape"});
  expect(R"({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]})", {"at least 0 in shape", "-2"});
  expect(R"({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]})", {"shape", "2.0"});
  expect(R"({"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]})", {"shape", "a string"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [0]})", {"an array of two"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]})", {"an array of two"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": {"a": 0, "b": 8}})", {"an array of two"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]})", {"that rise", "[8,0]"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]})", {"8 bytes", "[0,9]", "cut off"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, -8]})", {"data_offsets", "-8"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [18446744073709551608, 18446744073709551615]})", {"[18446"});
  expect(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 1e3]})", {"1000"});
  expect(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]})", {"12 bytes for F32", "8"});
  expect(R"({"dtype": "BF16", "shape": [2], "data_offsets": [0, 8]})", {"4 bytes for BF16", "8"});
  expect(R"({"dtype": "F32", "shape": [1152921504606846976], "data_offsets": [0, 8]})",
         {"2^57", "1152921504606846976"});
  expect(R"({"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 8]})", {"2^57"});
  expect(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]})", {"2^57"});
  expect(R"({"dtype": "F32", "shape": [0, 4294967296, 4294967296], "data_offsets": [0, 0]})", {"2^57"});
  expect(R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]})", {"offset 0", "4"});
  expect_refused(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                     "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                 "tensor b", {"offset 8", "4"});
  expect_refused(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                     "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                 "key a", {"once", "twice"});
}

TEST(Safetensors, MisalignedDataIsRefusedWhenAskedFor) {
  const TempFolder folder;
  write_file(folder / "odd.safetensors",
             file_of(R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}  )", "12345678"));
  const SafetensorsFile file(folder / "odd.safetensors");
  ASSERT_NE(file.tensors()[0].offset % 4, 0U);
  expect_error([&] { file.tensor("t"); }, "tensor t", {"a multiple of its element size"});
}

}  // namespace
}  // namespace thalweg::io
