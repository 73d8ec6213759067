#include "decode/rank_messages.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace thalweg::decode {
namespace {

// Ranks are of one build: values are sent as they lie in memory.
struct ChunkHeader {
  std::int32_t slot = 0;
  std::int32_t last = 0;
  std::int64_t seen = 0;
  std::int64_t tokens = 0;
};

struct StartHeader {
  std::int32_t slot = 0;
  std::int32_t next = 0;
  std::int64_t seen = 0;
  std::int64_t tokens = 0;
  Sampling sampling;
};
static_assert(std::is_trivially_copyable_v<StartHeader>);

template <class Header>
void append(std::vector<std::byte>& message, const Header& header, std::span<const std::int32_t> tokens) {
  const auto head = std::as_bytes(std::span(&header, 1));
  const auto body = std::as_bytes(tokens);
  message.insert(message.end(), head.begin(), head.end());
  message.insert(message.end(), body.begin(), body.end());
}

// Takes the next header and its tokens off the message.
template <class Header>
std::pair<Header, std::vector<std::int32_t>> take(std::span<const std::byte>& message) {
  Header header;
  std::memcpy(&header, message.data(), sizeof header);
  message = message.subspan(sizeof header);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(header.tokens));
  const std::size_t bytes = tokens.size() * sizeof(std::int32_t);
  if (bytes > 0) std::memcpy(tokens.data(), message.data(), bytes);
  message = message.subspan(bytes);
  return {header, std::move(tokens)};
}

}  // namespace

std::vector<std::byte> pack(std::span<const RankedChunk> chunks) {
  std::vector<std::byte> message;
  for (const RankedChunk& chunk : chunks) {
    append(message,
           ChunkHeader{chunk.slot, chunk.last ? 1 : 0, chunk.seen, static_cast<std::int64_t>(chunk.tokens.size())},
           chunk.tokens);
  }
  return message;
}

std::vector<RankedChunk> unpack_chunks(std::span<const std::byte> message) {
  std::vector<RankedChunk> chunks;
  while (!message.empty()) {
    auto [header, tokens] = take<ChunkHeader>(message);
    chunks.push_back({header.slot, header.seen, header.last != 0, std::move(tokens)});
  }
  return chunks;
}

std::vector<std::byte> pack(std::span<const RankedStart> starts) {
  std::vector<std::byte> message;
  for (const RankedStart& start : starts) {
    append(
        message,
        StartHeader{start.slot, start.next, start.seen, static_cast<std::int64_t>(start.tokens.size()), start.sampling},
        start.tokens);
  }
  return message;
}

std::vector<RankedStart> unpack_starts(std::span<const std::byte> message) {
  std::vector<RankedStart> starts;
  while (!message.empty()) {
    auto [header, tokens] = take<StartHeader>(message);
    starts.push_back({header.slot, header.seen, header.next, header.sampling, std::move(tokens)});
  }
  return starts;
}

}  // namespace thalweg::decode
