#include "decode/session.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "decode/checksum.h"
#include "io/atomic_file.h"
#include "io/byte_reader.h"
#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'H', 'A', 'L', 'S', 'E', 'S', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kVersionWithMtp = 2;  // the same, and behind the rest of the state that of the MTP layer

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t cache_dtype = 0;
  std::uint64_t model = 0;
  std::uint64_t tokens = 0;
};
static_assert(sizeof(Header) == 32, "a header without padding: it is written as it lies in memory");

template <class T>
std::span<const std::byte> bytes_of_values(std::span<const T> values) {
  return std::as_bytes(values);
}

std::string hex(std::uint64_t value) {
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15U];
  return text;
}

template <class T>
void copy_out(io::Bytes bytes, std::vector<T>& values) {
  values.resize(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

}  // namespace

std::uint64_t fingerprint(const ModelConfig& config, const Weights& weights, const io::TensorSource& source) {
  Checksum sum;
  sum.add(config.architecture);
  for (LayerKind kind : config.layers) sum.add_value(kind);
  for (std::int64_t size :
       {config.hidden, config.vocabulary, std::int64_t{config.heads}, std::int64_t{config.kv_heads},
        std::int64_t{config.head_dim}, std::int64_t{config.rotary_dim}, std::int64_t{config.key_heads},
        std::int64_t{config.value_heads}, std::int64_t{config.key_dim}, std::int64_t{config.value_dim},
        std::int64_t{config.conv_width}, static_cast<std::int64_t>(config.head_map), std::int64_t{config.experts},
        std::int64_t{config.experts_used}, std::int64_t{config.renormalize ? 1 : 0}, std::int64_t{config.tied_head}}) {
    sum.add_value(size);
  }
  sum.add_value(config.norm_eps);
  sum.add_value(config.rope_theta);
  for (float frequency : config.rope_frequencies) sum.add_value(frequency);
  if (!config.rope_frequencies.empty()) sum.add_value(config.rope_scale);
  constexpr std::int64_t kSample = 256;
  for (const auto& [name, use] : weights.used) {
    if (use.mtp) continue;  // no text depends on it
    const ConstTensor tensor = source.tensor(name);
    sum.add(name);
    sum.add_value(tensor.dtype);
    for (int i = 0; i < tensor.rank; ++i) sum.add_value(tensor.dim(i));
    const std::int64_t bytes = bytes_of(tensor.dtype, tensor.size());
    const std::int64_t sample = std::min(bytes, kSample);
    const std::span content(static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(bytes));
    for (std::int64_t begin : {std::int64_t{0}, (bytes - sample) / 2, bytes - sample}) {
      sum.add(content.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(sample)));
    }
  }
  return sum.value();
}

void save_session(const std::string& path, std::uint64_t model, const StatePool& pool, int slot,
                  std::span<const std::int32_t> tokens, std::span<const float> logits) {
  // Only the owner may read the text of a session.
  io::AtomicFile file(path, 0600);
  Checksum sum;
  const auto write = [&](std::span<const std::byte> bytes) {
    sum.add(bytes);
    file.write(bytes.data(), bytes.size());
  };
  Header header;
  const bool mtp = pool.has_mtp() && !pool.mtp_rows(slot).lost;
  if (mtp) header.version = kVersionWithMtp;
  header.cache_dtype = static_cast<std::uint32_t>(pool.cache_dtype());
  header.model = model;
  header.tokens = tokens.size();
  write(std::as_bytes(std::span(&header, 1)));
  write(bytes_of_values(tokens));
  write(bytes_of_values(logits));
  pool.read(slot, pool.length(slot), write, mtp);
  const std::uint64_t value = sum.value();
  file.write(&value, sizeof(value));
  file.commit();
}

SessionText restore_session(io::Bytes bytes, const std::string& path, std::uint64_t model, std::int64_t vocabulary,
                            StatePool& pool, int slot) {
  io::ByteReader reader(bytes, path);
  reader.set_subject("session");
  Header header;
  if (bytes.size() < kMagic.size() || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    reader.fail("a session file of thalweg", "something else");
  }
  const io::Bytes head = reader.take(sizeof(Header));
  std::memcpy(&header, head.data(), sizeof(Header));
  if (header.version != kVersion && header.version != kVersionWithMtp) {
    reader.fail("version " + std::to_string(kVersion) + " or " + std::to_string(kVersionWithMtp),
                std::to_string(header.version));
  }
  // The checksum is compared before any field is used.
  const std::size_t last = bytes.size() - sizeof(std::uint64_t);
  if (bytes.size() < sizeof(Header) + sizeof(std::uint64_t)) reader.fail("a checksum", "the file's end");
  std::uint64_t stored;
  std::memcpy(&stored, bytes.data() + last, sizeof(stored));
  Checksum sum;
  sum.add(bytes.first(last));
  if (sum.value() != stored) {
    reader.fail("the checksum " + hex(stored), hex(sum.value()) + ": the file is damaged");
  }
  if (header.model != model) {
    reader.fail("a session of this model and number of ranks, " + hex(model),
                "one of another model or number, " + hex(header.model));
  }
  if (header.cache_dtype != static_cast<std::uint32_t>(pool.cache_dtype())) {
    reader.fail("keys and values in " + std::string(dtype_name(pool.cache_dtype())), "another type");
  }
  if (header.tokens > static_cast<std::uint64_t>(pool.context())) {
    reader.fail("at most " + std::to_string(pool.context()) + " tokens, the context", std::to_string(header.tokens));
  }
  const auto count = static_cast<std::int64_t>(header.tokens);
  const std::uint64_t logits = count > 0 ? static_cast<std::uint64_t>(vocabulary) : 0;
  const bool mtp = header.version == kVersionWithMtp;
  const std::uint64_t mtp_bytes = pool.mtp_fixed_bytes() + pool.mtp_token_bytes() * header.tokens;
  const std::uint64_t expected = sizeof(Header) + header.tokens * sizeof(std::int32_t) + logits * sizeof(float) +
                                 pool.fixed_bytes() + pool.token_bytes() * header.tokens -
                                 (pool.has_mtp() ? mtp_bytes : 0) + (mtp ? mtp_bytes : 0) + sizeof(stored);
  if (bytes.size() != expected) {
    reader.fail(std::to_string(expected) + " bytes", std::to_string(bytes.size()));
  }
  SessionText text;
  copy_out(reader.take(header.tokens * sizeof(std::int32_t)), text.tokens);
  copy_out(reader.take(logits * sizeof(float)), text.logits);
  for (std::int32_t token : text.tokens) {
    if (token < 0 || token >= vocabulary) reader.fail("tokens of the vocabulary", std::to_string(token));
  }
  pool.reserve(count);
  // Where the pool has no MTP layer, what the file has of one is left unread.
  pool.write(
      slot, count, [&](std::size_t bytes_of_piece) { return reader.take(bytes_of_piece); }, mtp);
  if (count == 0) pool.mtp_rows(slot).lost = false;
  pool.set_length(slot, count);
  return text;
}

SessionText restore_session(const std::string& path, std::uint64_t model, std::int64_t vocabulary, StatePool& pool,
                            int slot) {
  const io::MappedFile file(path);
  return restore_session(file.bytes(), path, model, vocabulary, pool, slot);
}

}  // namespace thalweg::decode
