#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "io/file_lock.h"
#include "io/files.h"
#include "io/paths.h"

namespace thalweg::io {
namespace {

namespace fs = std::filesystem;

void replace(const std::string& path, const std::string& text, mode_t mode = 0666) {
  AtomicFile file(path, mode);
  file.write(text.data(), text.size());
  file.commit();
}

std::ptrdiff_t entries(const TempFolder& folder) { return std::distance(fs::directory_iterator(folder.path()), {}); }

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
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

TEST(AtomicFile, FollowsLinksAndLeavesThemLinks) {
  const TempFolder folder;
  fs::create_directory(folder / "real");
  write_file(folder / "real/file", "before");
  fs::create_symlink("real/file", folder / "link");
  fs::create_symlink("link", folder / "second");
  replace(folder / "second", "after");
  EXPECT_EQ(read_file(folder / "real/file"), "after");
  EXPECT_TRUE(fs::is_symlink(folder / "second"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));

  fs::create_symlink("real/new", folder / "dangling");
  replace(folder / "dangling", "new");
  EXPECT_EQ(read_file(folder / "real/new"), "new");
  EXPECT_TRUE(same_file(folder / "dangling", folder / "real/new"));
  EXPECT_FALSE(same_file(folder / "link", folder / "real/new"));
  EXPECT_FALSE(same_file(folder / "none", folder / "none"));

  fs::create_symlink("loop", folder / "loop");
  const std::string loop = folder / "loop";
  expect_error([&] { AtomicFile{loop}; }, "file", {loop, "symbolic links"});
}

TEST(AtomicFile, KeepsTheModeOfAFileAndGivesANewOneItsOwn) {
  const TempFolder folder;
  const std::string path = folder / "file";
  const mode_t mask = umask(022);
  replace(path, "secret", 0600);
  EXPECT_EQ(mode_of(path), 0600U);
  replace(path, "again");
  EXPECT_EQ(mode_of(path), 0600U);
  chmod(path.c_str(), 0664);
  replace(path, "shared", 0600);
  EXPECT_EQ(mode_of(path), 0664U);
  replace(folder / "public", "text");
  EXPECT_EQ(mode_of(folder / "public"), 0644U);
  umask(mask);
}

TEST(AtomicFile, WritesToDevicesAndPipesDirectly) {
  replace("/dev/null", "nothing");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THROW(replace("/dev/full", "something"), Error);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));

  const TempFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = read_file(pipe); });
  replace(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(AtomicFile, RefusesAFileThatMayNotBeWritten) {
  const TempFolder folder;
  const std::string path = folder / "file";
  write_file(path, "kept");
  chmod(path.c_str(), 0444);
  chmod(folder.path().c_str(), 0777);
  // As an ordinary user: root may write everything.
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(2);
    try {
      AtomicFile file(path);
    } catch (const Error& error) {
      _exit(std::string_view(error.what()).find("Permission denied") != std::string_view::npos ? 0 : 3);
    }
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// A process that was killed while it wrote, and one that still writes.
TEST(AtomicFile, RemovesWhatDeadProcessesLeftAndNothingElse) {
  const TempFolder folder;
  const std::string path = folder / "file";
  AtomicFile alive(path);
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(path);
    file.write("half", 4);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(entries(folder), 2);
  replace(path, "whole");
  EXPECT_EQ(entries(folder), 2);
  alive.write("other", 5);
  alive.commit();
  EXPECT_EQ(read_file(path), "other");
  EXPECT_EQ(entries(folder), 1);
}

TEST(UnfinishedFiles, AreRemovedAtASignal) {
  const TempFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const AtomicFile file(folder / "file");
    const FileLock lock(folder / "other");
    remove_unfinished_files();
    _exit(0);  // without destructors
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(entries(folder), 0);
}

TEST(FileLock, KeepsOthersOut) {
  const TempFolder folder;
  const std::string path = folder / "file";
  {
    const FileLock lock(path);
    expect_error([&] { FileLock{path}; }, "file", {path, "in use by process " + std::to_string(getpid())});
    fs::create_symlink("file", folder / "link");
    expect_error([&] { FileLock{folder / "link"}; }, "file", {"in use"});
  }
  EXPECT_FALSE(fs::exists(path + ".lock"));
  // One that a killed process left is free.
  write_file(path + ".lock", "1");
  const FileLock lock(path);
  const std::string nowhere = folder / "missing/file";
  expect_error([&] { FileLock{nowhere}; }, "file", {nowhere, "folder"});
}

}  // namespace
}  // namespace thalweg::io
