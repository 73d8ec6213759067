#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_set>

#include "io/byte_reader.h"
#include "io/gguf.h"
#include "io/printable.h"

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

namespace thalweg::io {
namespace {

constexpr int kMaxDepth = 8;
constexpr std::uint64_t kLeastString = 8;                        // its length
constexpr std::uint64_t kLeastArray = 4 + 8;                     // type and count
constexpr std::uint64_t kLeastEntry = kLeastString + 1 + 4 + 1;  // key of one byte, type, value of one byte
constexpr std::uint64_t kLeastTensor = kLeastString + 1 + 4 + 4 + 8;

std::string_view read_string(ByteReader& reader) {
  const Bytes text = reader.take(reader.read<std::uint64_t>());
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

bool read_bool(ByteReader& reader) {
  const auto byte = reader.read<std::uint8_t>();
  if (byte > 1) reader.fail("a bool of 0 or 1", std::to_string(byte));
  return byte == 1;
}

GgufType read_type(ByteReader& reader) {
  const auto type = reader.read<std::uint32_t>();
  if (type >= kNumGgufTypes) {
    reader.fail("a value type below " + std::to_string(kNumGgufTypes), std::to_string(type));
  }
  return static_cast<GgufType>(type);
}

GgufArray read_array(ByteReader& reader, int depth);

// Default elements of `type`: turns the run-time type into an alternative of the variant, to be visited.
template <class Variant, std::size_t... Index>
Variant make_alternative(std::size_t type, std::index_sequence<Index...>) {
  Variant variant;
  static_cast<void>(((Index == type && (variant.template emplace<Index>(), true)) || ...));
  return variant;
}

template <class Variant>
Variant make_alternative(GgufType type) {
  return make_alternative<Variant>(static_cast<std::size_t>(type),
                                   std::make_index_sequence<std::variant_size_v<Variant>>());
}

template <class T>
T read_value(ByteReader& reader, int depth) {
  if constexpr (std::is_same_v<T, bool>) {
    return read_bool(reader);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::string(read_string(reader));
  } else if constexpr (std::is_same_v<T, GgufArray>) {
    return read_array(reader, depth + 1);
  } else {
    return reader.read<T>();
  }
}

template <class T>
constexpr std::uint64_t least_bytes() {
  if constexpr (std::is_same_v<T, std::string>) {
    return kLeastString;
  } else if constexpr (std::is_same_v<T, GgufArray>) {
    return kLeastArray;
  } else {
    return sizeof(T);
  }
}

GgufArray read_array(ByteReader& reader, int depth) {
  if (depth > kMaxDepth) reader.fail("arrays nested at most " + std::to_string(kMaxDepth) + " deep", "deeper ones");
  GgufArray array{make_alternative<GgufArray::Elements>(read_type(reader))};
  const auto given = reader.read<std::uint64_t>();
  std::visit(
      [&](auto& list) {
        using T = typename std::decay_t<decltype(list)>::value_type;
        const std::size_t count = reader.check_count(given, least_bytes<T>(), "array elements");
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          const Bytes raw = reader.take(count * sizeof(T));
          list.resize(count);
          if (count > 0) std::memcpy(list.data(), raw.data(), raw.size());
        } else {
          list.reserve(count);
          for (std::size_t i = 0; i < count; ++i) list.push_back(read_value<T>(reader, depth));
        }
      },
      array.elements);
  return array;
}

GgufValue read_metadata_value(ByteReader& reader) {
  auto value = make_alternative<GgufValue>(read_type(reader));
  std::visit([&](auto& held) { held = read_value<std::decay_t<decltype(held)>>(reader, 0); }, value);
  return value;
}

void read_metadata(ByteReader& reader, std::size_t count, GgufMetadata& metadata) {
  for (std::size_t i = 0; i < count; ++i) {
    reader.set_subject("metadata entry " + std::to_string(i + 1) + " of " + std::to_string(count));
    const std::string_view key = read_string(reader);
    if (key.empty()) reader.fail("a key", "an empty one");
    reader.set_subject("key " + printable(key));
    GgufValue value = read_metadata_value(reader);
    if (!metadata.add(std::string(key), std::move(value))) reader.fail("each key once", "it twice");
  }
}

std::uint32_t read_alignment(const GgufMetadata& metadata, const std::string& path) {
  const std::int64_t alignment = metadata.integer("general.alignment", std::int64_t{kGgufDefaultAlignment});
  // Below 8, the data of a tensor could be misaligned for its elements.
  if (alignment < 8 || alignment > std::numeric_limits<std::uint32_t>::max() ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    throw Error(path, "key general.alignment", "a power of two of at least 8", std::to_string(alignment));
  }
  return static_cast<std::uint32_t>(alignment);
}

std::vector<std::int64_t> read_shape(ByteReader& reader) {
  const auto rank = reader.read<std::uint32_t>();
  if (rank > kGgufMaxRank) {
    reader.fail("at most " + std::to_string(kGgufMaxRank) + " dimensions", std::to_string(rank));
  }
  std::vector<std::int64_t> shape;
  std::int64_t count = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto extent = reader.read<std::uint64_t>();
    // Strides are computed from the shape even if another extent is 0.
    if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / count)) {
      reader.fail("fewer than 2^63 elements", "an extent of " + std::to_string(extent));
    }
    shape.push_back(static_cast<std::int64_t>(extent));
    count *= std::max<std::int64_t>(shape.back(), 1);
  }
  if (shape.empty()) shape.push_back(1);
  std::reverse(shape.begin(), shape.end());
  return shape;
}

// Bytes of a tensor. They cannot overflow: read_shape() limits the elements, and a block has fewer bytes than weights.
std::uint64_t tensor_bytes(const ByteReader& reader, const GgufTensor& tensor) {
  if (tensor.type.block_size == 0) return 0;
  const std::int64_t row = tensor.shape.back();
  if (row % tensor.type.block_size != 0) {
    reader.fail("rows of a multiple of " + std::to_string(tensor.type.block_size) + " for " + tensor.type.name,
                "rows of " + std::to_string(row));
  }
  std::uint64_t blocks = 1;
  for (const std::int64_t extent : tensor.shape) blocks *= static_cast<std::uint64_t>(extent);
  blocks /= static_cast<std::uint64_t>(tensor.type.block_size);
  const auto block_bytes = static_cast<std::uint64_t>(tensor.type.block_bytes);
  if (blocks > std::numeric_limits<std::uint64_t>::max() / block_bytes) {
    reader.fail("fewer than 2^64 bytes", std::to_string(blocks) + " blocks");
  }
  return blocks * block_bytes;
}

// Offsets in a file count from the end of the header, rounded up; afterwards they count from the file's first byte.
void place_tensors(ByteReader& reader, std::uint64_t file_bytes, GgufHeader& header) {
  const std::uint64_t alignment = header.alignment;
  const std::uint64_t data = (reader.offset() + alignment - 1) / alignment * alignment;
  const std::uint64_t size = data <= file_bytes ? file_bytes - data : 0;
  std::vector<const GgufTensor*> order;
  for (GgufTensor& tensor : header.tensors) {
    reader.set_subject("tensor " + printable(tensor.name));
    if (tensor.offset % alignment != 0) {
      reader.fail("an offset that is a multiple of " + std::to_string(alignment), std::to_string(tensor.offset));
    }
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) {
      // An empty tensor may begin past the end of a file that does not end on the alignment.
      tensor.offset = std::min(data, file_bytes);
      continue;
    }
    // A type without a known size takes at least a byte.
    if (tensor.offset >= size || tensor.bytes > size - tensor.offset) {
      reader.fail(std::to_string(tensor.bytes) + " bytes at offset " + std::to_string(tensor.offset) + " of the data",
                  "data of " + std::to_string(size) + " bytes: the file is damaged or was cut off");
    }
    tensor.offset += data;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      reader.set_subject("tensor " + printable(order[i]->name));
      reader.fail("tensors that lie apart", "one that overlaps " + printable(order[i - 1]->name));
    }
  }
}

std::uint32_t read_version(ByteReader& reader) {
  const Bytes magic = reader.take(4);
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
    reader.fail("a GGUF file, which starts with GGUF",
                printable({reinterpret_cast<const char*>(magic.data()), magic.size()}));
  }
  const auto version = reader.read<std::uint32_t>();
  if ((version & 0xFFFF) == 0 && version != 0) reader.fail("a little-endian file", "a big-endian one");
  if (version != 2 && version != 3) reader.fail("GGUF version 2 or 3", "version " + std::to_string(version));
  return version;
}

}  // namespace

GgufHeader parse_gguf(Bytes bytes, const std::string& path) {
  ByteReader reader(bytes, path);
  GgufHeader header;
  header.metadata = GgufMetadata(path);
  header.version = read_version(reader);
  const auto given_tensors = reader.read<std::uint64_t>();
  const auto given_entries = reader.read<std::uint64_t>();
  const std::size_t num_tensors = reader.check_count(given_tensors, kLeastTensor, "tensors");
  const std::size_t num_entries = reader.check_count(given_entries, kLeastEntry, "metadata entries");
  read_metadata(reader, num_entries, header.metadata);
  header.alignment = read_alignment(header.metadata, path);

  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < num_tensors; ++i) {
    reader.set_subject("tensor " + std::to_string(i + 1) + " of " + std::to_string(num_tensors));
    const std::string_view name = read_string(reader);
    if (name.empty()) reader.fail("a name", "an empty one");
    reader.set_subject("tensor " + printable(name));
    if (!names.insert(name).second) reader.fail("each tensor once", "it twice");
    GgufTensor tensor;
    tensor.name = name;
    tensor.shape = read_shape(reader);
    tensor.type = ggml_type(reader.read<std::uint32_t>());
    tensor.offset = reader.read<std::uint64_t>();
    tensor.bytes = tensor_bytes(reader, tensor);
    header.tensors.push_back(std::move(tensor));
  }
  place_tensors(reader, bytes.size(), header);
  return header;
}

}  // namespace thalweg::io
