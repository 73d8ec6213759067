// The cache in a folder: it survives restarts and damage, stays within its budget, and never gives another text's
// state.

#include "engine/disk_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "thalweg/error.h"

namespace thalweg::engine {
namespace {

namespace fs = std::filesystem;

constexpr EntryShape kShape = {7, 48, 200};
constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;
using Text = std::vector<std::int32_t>;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "thalweg-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> files;
    for (const fs::directory_entry& item : fs::directory_iterator(path_)) {
      if (item.path().extension() == ".prefix") files.push_back(item.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const fs::path& file : files()) sum += fs::file_size(file);
    return sum;
  }

 private:
  fs::path path_;
};

// What a model would leave: a function of all tokens up to `end`.
HostBytes content_of(const Text& text, std::size_t end, std::size_t bytes) {
  std::uint64_t hash = 1469598103934665603U + bytes;
  for (std::size_t i = 0; i < end; ++i) hash = (hash ^ static_cast<std::uint64_t>(text[i])) * 1099511628211U;
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(hash >> i % 8 * 8);
  return memory;
}

Prefix<HostBytes> prefix_of(const Text& text) {
  Prefix<HostBytes> prefix;
  for (std::size_t begin = 0; begin < text.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, text.size());
    prefix.blocks.push_back(content_of(text, end, kShape.block_bytes));
  }
  prefix.tokens = static_cast<std::int64_t>(text.size());
  prefix.checkpoint = content_of(text, text.size(), kShape.checkpoint_bytes);
  return prefix;
}

bool is_prefix_of(const Prefix<HostBytes>& prefix, const Text& text) {
  const Prefix<HostBytes> expected = prefix_of(text);
  if (prefix.tokens != expected.tokens || prefix.blocks.size() != expected.blocks.size()) return false;
  for (std::size_t i = 0; i < prefix.blocks.size(); ++i) {
    if (std::memcmp(prefix.blocks[i].get(), expected.blocks[i].get(), kShape.block_bytes) != 0) return false;
  }
  return std::memcmp(prefix.checkpoint.get(), expected.checkpoint.get(), kShape.checkpoint_bytes) == 0;
}

Text random_text(std::mt19937& random, std::size_t most_blocks, int kinds) {
  Text text;
  const std::size_t blocks = 1 + random() % most_blocks;
  for (std::size_t b = 0; b < blocks; ++b) {
    text.insert(text.end(), kBlock, static_cast<std::int32_t>(random() % static_cast<unsigned>(kinds)));
  }
  // As answers do.
  if (random() % 2 == 0) text.resize(text.size() - random() % kBlock);
  return text;
}

void store(DiskCache& cache, const Text& text) {
  cache.store(text, prefix_of(text));
  cache.flush();
}

// Whether the whole text is found, and right.
bool has(DiskCache& cache, const Text& text) {
  const std::int64_t tokens = cache.find(text);
  if (tokens == 0) return false;
  const auto loaded = cache.load(text, tokens).get();
  if (!loaded) return false;
  EXPECT_TRUE(is_prefix_of(*loaded, Text(text.begin(), text.begin() + tokens)));
  return tokens == static_cast<std::int64_t>(text.size());
}

TEST(DiskCache, RandomTextsOverRestarts) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    const Folder folder;
    std::vector<Text> stored;
    for (int process = 0; process < 4; ++process) {
      DiskCache cache(folder.path(), kShape, kPlenty);
      for (const Text& text : stored) EXPECT_TRUE(has(cache, text));
      for (int i = 0; i < 15; ++i) {
        stored.push_back(random_text(random, 6, 3));
        store(cache, stored.back());
        Text other = random_text(random, 6, 3);
        other.resize(other.size() + random() % kBlock, 1);
        std::size_t longest = 0;
        for (const Text& text : stored) {
          const bool begins = text.size() <= other.size() && std::equal(text.begin(), text.end(), other.begin());
          if (begins) longest = std::max(longest, text.size());
        }
        EXPECT_EQ(cache.find(other), static_cast<std::int64_t>(longest));
        has(cache, other);
      }
      EXPECT_EQ(cache.stats().bytes, folder.bytes());
      EXPECT_EQ(cache.stats().failures, 0U);
    }
  }
}

TEST(DiskCache, StaysWithinItsBudget) {
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    std::mt19937 random(seed);
    const Folder folder;
    const std::uint64_t budget = 4000 + random() % 10000;
    for (int process = 0; process < 3; ++process) {
      DiskCache cache(folder.path(), kShape, budget);
      for (int i = 0; i < 60; ++i) {
        const Text text = random_text(random, 12, 2);
        store(cache, text);
        EXPECT_LE(folder.bytes(), budget);
        EXPECT_EQ(cache.stats().bytes, folder.bytes());
        has(cache, text);
      }
      EXPECT_GT(cache.stats().evictions, 0U);
    }
    const DiskCache smaller(folder.path(), kShape, budget / 2);
    EXPECT_LE(folder.bytes(), budget / 2);
  }
}

TEST(DiskCache, DamageIsFoundAndRemoved) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const Folder folder;
    std::vector<Text> texts;
    {
      DiskCache cache(folder.path(), kShape, kPlenty);
      for (int i = 0; i < 6; ++i) {
        texts.push_back(random_text(random, 5, 2));
        store(cache, texts.back());
      }
    }
    const std::vector<fs::path> files = folder.files();
    const fs::path& file = files[random() % files.size()];
    const auto size = fs::file_size(file);
    if (round % 3 == 0) {
      fs::resize_file(file, random() % size);
    } else {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(random() % size);
      stream.seekg(at);
      const auto changed = static_cast<char>(stream.get() ^ (1 << random() % 8));
      stream.seekp(at);
      stream.put(changed);
    }
    // A damaged file is of no model, of another one, or of this one: in no case is anything wrong read from it.
    DiskCache cache(folder.path(), kShape, kPlenty);
    for (const Text& text : texts) has(cache, text);
    for (const Text& text : texts) store(cache, text);
    for (const Text& text : texts) EXPECT_TRUE(has(cache, text)) << "round " << round;
  }
}

TEST(DiskCache, LeftoversOfAKilledProcessAreRemoved) {
  const Folder folder;
  const fs::path leftover = fs::path(folder.path()) / "0123456789abcdef.prefix.partial-1-1";
  std::ofstream(leftover) << "half a file";
  const fs::path foreign = fs::path(folder.path()) / "notes.txt";
  std::ofstream(foreign) << "somebody's";
  const DiskCache cache(folder.path(), kShape, kPlenty);
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST(DiskCache, AnotherModelsFilesAreNotReadAndLeaveFirst) {
  const Folder folder;
  const Text text(kBlock, 1);
  {
    DiskCache cache(folder.path(), kShape, kPlenty);
    store(cache, text);
  }
  EntryShape other = kShape;
  other.model = 8;
  {
    DiskCache cache(folder.path(), other, kPlenty);
    EXPECT_EQ(cache.find(text), 0);
    EXPECT_EQ(cache.stats().bytes, folder.bytes());
  }
  {
    DiskCache cache(folder.path(), kShape, kPlenty);
    EXPECT_TRUE(has(cache, text));
  }
  DiskCache cache(folder.path(), other, folder.bytes() + 10);
  store(cache, text);
  EXPECT_TRUE(has(cache, text));
  EXPECT_EQ(folder.files().size(), 1U);
}

TEST(DiskCache, FilesOfAnotherVersionAreRemoved) {
  const Folder folder;
  const Text text(100, 1);
  {
    DiskCache cache(folder.path(), kShape, kPlenty);
    store(cache, text);
  }
  ASSERT_EQ(folder.files().size(), 1U);
  {
    std::fstream file(folder.files().front(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);  // behind the magic number
    const std::uint64_t version = 1;
    file.write(reinterpret_cast<const char*>(&version), sizeof version);
  }
  DiskCache cache(folder.path(), kShape, kPlenty);
  EXPECT_TRUE(folder.files().empty());
  EXPECT_EQ(cache.stats().failures, 0U);
  EXPECT_EQ(cache.stats().bytes, 0U);
  EXPECT_EQ(cache.find(text), 0);
  store(cache, text);
  EXPECT_TRUE(has(cache, text));
}

TEST(DiskCache, AFileThatReplacesAnothersIsCountedOnce) {
  const Folder folder;
  const Text text(100, 1);
  {
    DiskCache cache(folder.path(), kShape, kPlenty);
    store(cache, text);
  }
  {
    std::fstream file(folder.files().front(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(16);  // the model's key
    file.put('x');
  }
  const std::uint64_t bytes = folder.bytes();
  DiskCache cache(folder.path(), kShape, 2 * bytes);
  EXPECT_EQ(cache.stats().bytes, bytes);
  store(cache, text);
  EXPECT_EQ(cache.stats().bytes, bytes);
  store(cache, Text(100, 2));
  EXPECT_TRUE(has(cache, text));
  EXPECT_EQ(cache.stats().bytes, folder.bytes());
}

TEST(DiskCache, OneProcessAtATime) {
  const Folder folder;
  const DiskCache cache(folder.path(), kShape, kPlenty);
  EXPECT_THROW(DiskCache(folder.path(), kShape, kPlenty), Error);
  EXPECT_THROW(DiskCache("/proc/nowhere", kShape, kPlenty), Error);
}

TEST(DiskCache, EverythingIsWrittenBeforeTheEnd) {
  const Folder folder;
  std::mt19937 random(3);
  std::vector<Text> texts;
  for (int i = 0; i < 50; ++i) texts.push_back(random_text(random, 8, 4));
  {
    DiskCache cache(folder.path(), kShape, kPlenty);
    for (const Text& text : texts) cache.store(text, prefix_of(text));
  }
  DiskCache cache(folder.path(), kShape, kPlenty);
  for (const Text& text : texts) EXPECT_TRUE(has(cache, text));
}

}  // namespace
}  // namespace thalweg::engine
