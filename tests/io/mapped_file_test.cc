#include "io/mapped_file.h"

#include <sys/stat.h>

#include <vector>

#include "io/atomic_file.h"
#include "io/files.h"
#include "io/printable.h"

namespace thalweg::io {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheFilesBytes) {
  const TempFolder folder;
  const std::string path = folder / "file";
  write_file(path, "some bytes");
  MappedFile file(path);
  EXPECT_EQ(text_of(file), "some bytes");
  EXPECT_EQ(file.path(), path);
  for (const Access access : {Access::kNormal, Access::kSequential, Access::kRandom}) file.advise(access);

  MappedFile moved(std::move(file));
  EXPECT_EQ(text_of(moved), "some bytes");
  write_file(folder / "other", "");
  moved = MappedFile(folder / "other");
  EXPECT_TRUE(moved.bytes().empty());
  moved.advise(Access::kSequential);
}

TEST(MappedFile, PrefetchReportsItsWay) {
  const TempFolder folder;
  write_file(folder / "large", std::string((std::size_t{40} << 20) + 5, 'x'));
  write_file(folder / "small", "x");
  write_file(folder / "empty", "");
  std::vector<MappedFile> files;
  for (const char* name : {"large", "empty", "small"}) files.emplace_back(folder / name);
  std::vector<double> done;
  prefetch_files(files, [&](double part) { done.push_back(part); });
  ASSERT_GT(done.size(), 3U);
  for (std::size_t i = 1; i < done.size(); ++i) EXPECT_GT(done[i], done[i - 1]);
  EXPECT_EQ(done.back(), 1.0);
  prefetch_files(files, {});
}

TEST(MappedFile, SaysWhatIsWrongWithAFile) {
  const TempFolder folder;
  const std::string missing = folder / "missing";
  expect_error([&] { MappedFile{missing}; }, "file", {missing, "No such file"});
  expect_error([&] { MappedFile{folder.path().string()}; }, "file", {folder.path().string(), "a directory"});
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error([&] { MappedFile{pipe}; }, "file", {pipe, "a device or a pipe"});
}

TEST(AtomicFile, AppearsWhenCommitted) {
  const TempFolder folder;
  const std::string path = folder / "file";
  write_file(path, "before");
  {
    AtomicFile file(path);
    file.write("af", 2);
    file.write("ter", 3);
    EXPECT_EQ(file.size(), 5U);
    EXPECT_EQ(read_file(path), "before");
    file.commit();
    EXPECT_EQ(read_file(path), "after");
    EXPECT_THROW(file.write("more", 4), Error);
  }
  EXPECT_EQ(read_file(path), "after");
  {
    AtomicFile file(path);
    file.write("lost", 4);
  }
  EXPECT_EQ(read_file(path), "after");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, SaysWhatIsWrong) {
  const TempFolder folder;
  const std::string path = folder / "missing/file";
  expect_error([&] { AtomicFile{path}; }, "file", {path, "No such file"});
  const std::string taken = folder / "taken";
  std::filesystem::create_directory(taken);
  expect_error([&] { AtomicFile(taken).commit(); }, "file", {taken, "directory"});
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("blk.0.ssm_a"), "blk.0.ssm_a");
  EXPECT_EQ(printable("a\x1b[2J\n\xff"), "a\\x1b[2J\\x0a\\xff");
  EXPECT_EQ(printable(std::string(1000, 'a')), std::string(100, 'a') + "...");
}

}  // namespace
}  // namespace thalweg::io
