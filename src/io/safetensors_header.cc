#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "io/json_parse.h"
#include "io/printable.h"
#include "io/safetensors.h"
#include "thalweg/error.h"

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

namespace thalweg::io {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit

struct Type {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

constexpr Type kTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"U32", 32, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I8", 8, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"C64", 64, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
};

class Parser {
 public:
  Parser(Bytes bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  SafetensorsHeader parse() {
    const std::string_view text = find_header();
    const json header = parse_json(text, path_, "header");
    if (!header.is_object()) fail("header", "a JSON object", json_type_name(header));
    SafetensorsHeader result;
    for (const auto& item : header.items()) {
      if (item.key() == "__metadata__") {
        result.metadata = read_metadata(item.value());
      } else {
        result.tensors.push_back(read_tensor(item.key(), item.value()));
      }
    }
    check_places(result.tensors);
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view subject, std::string_view expected, std::string_view given) const {
    throw Error(path_, subject, expected, given);
  }

  std::string_view find_header() {
    if (bytes_.size() < 8) {
      fail("header", "a safetensors file, which has at least 8 bytes", std::to_string(bytes_.size()));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof(length));
    if (length > kLongestHeader || length > bytes_.size() - 8) {
      fail("header",
           "a length of at most " + std::to_string(std::min<std::uint64_t>(kLongestHeader, bytes_.size() - 8)) +
               " bytes",
           std::to_string(length));
    }
    data_ = 8 + length;
    return {reinterpret_cast<const char*>(bytes_.data()) + 8, static_cast<std::size_t>(length)};
  }

  std::vector<std::pair<std::string, std::string>> read_metadata(const json& value) const {
    if (!value.is_object()) fail("key __metadata__", "an object", json_type_name(value));
    std::vector<std::pair<std::string, std::string>> metadata;
    for (const auto& item : value.items()) {
      if (!item.value().is_string()) {
        fail("key __metadata__." + printable(item.key()), "a string", printable(json_type_name(item.value())));
      }
      metadata.emplace_back(item.key(), item.value().get<std::string>());
    }
    return metadata;
  }

  const json& member(const json& object, const char* key, const std::string& subject) const {
    const auto found = object.find(key);
    if (found == object.end()) fail(subject, std::string("the key ") + key, "none");
    return *found;
  }

  std::uint64_t natural(const json& value, const char* key, const std::string& subject) const {
    if (!value.is_number_unsigned()) {
      fail(subject, std::string("integers of at least 0 in ") + key, printable(json_type_name(value)));
    }
    return value.get<std::uint64_t>();
  }

  // Strides are computed from the shape even if an extent is 0, so the product of the others must be small enough.
  std::vector<std::int64_t> read_shape(const json& value, const std::string& subject) const {
    if (!value.is_array()) fail(subject, "an array as shape", printable(json_type_name(value)));
    std::vector<std::int64_t> shape;
    std::int64_t count = 1;
    for (const json& element : value) {
      const std::uint64_t extent = natural(element, "shape", subject);
      if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / 64 / count)) {
        fail(subject, "at most 2^57 elements", "an extent of " + std::to_string(extent));
      }
      shape.push_back(static_cast<std::int64_t>(extent));
      count *= std::max<std::int64_t>(shape.back(), 1);
    }
    return shape;
  }

  SafetensorsTensor read_tensor(const std::string& name, const json& value) const {
    const std::string subject = "tensor " + printable(name);
    if (!value.is_object()) fail(subject, "an object", printable(json_type_name(value)));
    SafetensorsTensor tensor;
    tensor.name = name;
    const json& type = member(value, "dtype", subject);
    if (!type.is_string()) fail(subject, "a string as dtype", printable(json_type_name(type)));
    tensor.type = type.get<std::string>();
    tensor.shape = read_shape(member(value, "shape", subject), subject);

    const json& offsets = member(value, "data_offsets", subject);
    if (!offsets.is_array() || offsets.size() != 2) {
      fail(subject, "an array of two as data_offsets", printable(json_type_name(offsets)));
    }
    const std::uint64_t begin = natural(offsets[0], "data_offsets", subject);
    const std::uint64_t end = natural(offsets[1], "data_offsets", subject);
    const std::uint64_t size = bytes_.size() - data_;
    if (begin > end || end > size) {
      fail(subject, "data_offsets that rise and end within the data's " + std::to_string(size) + " bytes",
           "[" + std::to_string(begin) + "," + std::to_string(end) + "]: the file is damaged or was cut off");
    }
    tensor.offset = data_ + begin;
    tensor.bytes = end - begin;
    check_size(tensor, subject);
    if (tensor.shape.empty()) tensor.shape.push_back(1);
    return tensor;
  }

  // The size of an unknown type cannot be checked.
  void check_size(SafetensorsTensor& tensor, const std::string& subject) const {
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const Type& candidate) { return candidate.name == tensor.type; });
    if (type == std::end(kTypes)) return;
    tensor.dtype = type->dtype;
    std::uint64_t bits = static_cast<std::uint64_t>(type->bits);
    for (const std::int64_t extent : tensor.shape) bits *= static_cast<std::uint64_t>(extent);
    if (bits % 8 != 0 || bits / 8 != tensor.bytes) {
      fail(subject, std::to_string(bits / 8) + " bytes for " + tensor.type + " of its shape",
           std::to_string(tensor.bytes));
    }
  }

  void check_places(std::vector<SafetensorsTensor>& tensors) const {
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
      return std::pair(a.offset, a.bytes) <
             std::pair(b.offset, b.bytes);  // an empty one before the tensor at the same offset
    });
    std::uint64_t end = data_;
    for (const SafetensorsTensor& tensor : tensors) {
      if (tensor.offset != end) {
        fail("tensor " + printable(tensor.name),
             "data at offset " + std::to_string(end - data_) + ", after the tensor before it",
             std::to_string(tensor.offset - data_));
      }
      end += tensor.bytes;
    }
    if (end != bytes_.size()) {
      fail("data", std::to_string(end - data_) + " bytes, as the header says", std::to_string(bytes_.size() - data_));
    }
  }

  Bytes bytes_;
  const std::string& path_;
  std::uint64_t data_ = 0;  // offset of the data
};

}  // namespace

SafetensorsHeader parse_safetensors(Bytes bytes, const std::string& path) { return Parser(bytes, path).parse(); }

}  // namespace thalweg::io
