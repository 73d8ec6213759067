#include "io/mapped_file.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

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

// Truncated behind the mapping's back: zeros instead of SIGBUS, and an error for who asks.
TEST(MappedFile, NoticesThatTheFileWasTruncated) {
  const TempFolder folder;
  const std::string path = folder / "file";
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  write_file(path, std::string(kBytes, 'x'));
  const MappedFile file(path);
  const MappedFile whole(path);
  file.require_intact();
  std::filesystem::resize_file(path, 5000);
  EXPECT_EQ(text_of(file).find_first_not_of('x'), 5000U);
  EXPECT_EQ(text_of(file).back(), '\0');
  expect_error([&] { file.require_intact(); }, "file", {path, "1048576 bytes", "truncated"});
  whole.require_intact();  // nothing of it was read
  std::size_t zeros = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] { static_cast<void>(text_of(whole)); });
  }
  for (std::thread& reader : readers) reader.join();
  for (const std::byte byte : whole.bytes()) zeros += byte == std::byte{0} ? 1 : 0;
  EXPECT_EQ(zeros, kBytes - 5000);
  expect_error([&] { whole.require_intact(); }, "file", {path});
}

// The process ends as it would without our handler: by the signal, or by the report of a sanitizer that handles it.
bool ended_by_bus_error(int status) {
#if defined(__SANITIZE_ADDRESS__)
  return WIFEXITED(status) && WEXITSTATUS(status) != 0;
#else
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
#endif
}

// Faults elsewhere, and signals that were sent, go to whoever handled them before.
TEST(MappedFileDeathTest, LeavesOtherBusErrorsAlone) {
  const TempFolder folder;
  write_file(folder / "file", "x");
  const MappedFile file(folder / "file");
  EXPECT_EXIT(raise(SIGBUS), ended_by_bus_error, "");
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("blk.0.ssm_a"), "blk.0.ssm_a");
  EXPECT_EQ(printable("a\x1b[2J\n\xff"), "a\\x1b[2J\\x0a\\xff");
  EXPECT_EQ(printable(std::string(1000, 'a')), std::string(100, 'a') + "...");
}

}  // namespace
}  // namespace thalweg::io
