// Ranks that mpirun or srun started, through Open MPI's library: loaded at run time, so that nothing else needs it. The
// declarations are those of its binary interface, libmpi.so.40 (Open MPI 2 to 5), in which handles are pointers.

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/transport.h"

namespace thalweg::comm {
namespace {

using Handle = void*;  // MPI_Comm, MPI_Datatype, MPI_Request

constexpr int kThreadSerialized = 2;
constexpr int kTag = 7;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of a message: MPI counts with an int

class Library {
 public:
  static const Library& get() {
    static const Library library;
    return library;
  }

  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*initialized)(int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*comm_rank)(Handle, int*) = nullptr;
  int (*comm_size)(Handle, int*) = nullptr;
  int (*comm_set_errhandler)(Handle, Handle) = nullptr;
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test)(Handle*, int*, void*) = nullptr;
  Handle world = nullptr;
  Handle byte = nullptr;
  Handle errors_return = nullptr;

 private:
  Library() {
    // Global: Open MPI's own components look its symbols up.
    void* library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      throw Error("ranks", "transport", "Open MPI's library libmpi.so.40 (Debian's libopenmpi3)",
                  "none that can be loaded; TCP needs no library");
    }
    const auto find = [&](const char* name) {
      void* symbol = dlsym(library, name);
      if (symbol == nullptr)
        throw Error("ranks", "transport", "Open MPI's library", std::string("one without ") + name);
      return symbol;
    };
    const auto take = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(name));
    };
    take(init_thread, "MPI_Init_thread");
    take(initialized, "MPI_Initialized");
    take(finalize, "MPI_Finalize");
    take(comm_rank, "MPI_Comm_rank");
    take(comm_size, "MPI_Comm_size");
    take(comm_set_errhandler, "MPI_Comm_set_errhandler");
    take(isend, "MPI_Isend");
    take(irecv, "MPI_Irecv");
    take(test, "MPI_Test");
    world = find("ompi_mpi_comm_world");
    byte = find("ompi_mpi_byte");
    errors_return = find("ompi_mpi_errors_return");
  }
};

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(bool started) : started_(started) {}
  // Without finish() the process ends without MPI_Finalize, and the launcher ends the others.
  ~MpiTransport() override {
    if (started_ && finished_) mpi_.finalize();
  }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout) override {
    struct Part {
      Handle request;
      int peer;
    };
    std::vector<Part> parts;
    const auto start = [&](int peer, std::size_t bytes, const auto& begin) {
      for (std::size_t done = 0; done < bytes; done += kMostBytes) {
        Part part{nullptr, peer};
        if (begin(done, static_cast<int>(std::min(kMostBytes, bytes - done)), &part.request) != 0) {
          throw lost(peer, "one that MPI cannot reach");
        }
        parts.push_back(part);
      }
    };
    for (const Receive& to : receives) {
      start(to.peer, to.bytes, [&](std::size_t at, int count, Handle* request) {
        return mpi_.irecv(static_cast<std::byte*>(to.data) + at, count, mpi_.byte, to.peer, kTag, mpi_.world, request);
      });
    }
    for (const Send& from : sends) {
      start(from.peer, from.bytes, [&](std::size_t at, int count, Handle* request) {
        return mpi_.isend(static_cast<const std::byte*>(from.data) + at, count, mpi_.byte, from.peer, kTag, mpi_.world,
                          request);
      });
    }
    using Clock = std::chrono::steady_clock;
    Clock::time_point last = Clock::now();
    for (int idle = 0; !parts.empty(); ++idle) {
      const std::size_t before = parts.size();
      std::erase_if(parts, [&](Part& part) {
        int done = 0;
        if (mpi_.test(&part.request, &done, nullptr) != 0) throw lost(part.peer, "one that MPI has lost");
        return done != 0;
      });
      if (parts.empty()) return;
      if (parts.size() < before) {
        last = Clock::now();
        idle = 0;
      } else if (std::chrono::duration<double>(Clock::now() - last).count() > timeout) {
        throw silent(parts.front().peer, timeout);
      }
      wait(idle);
    }
  }

  void abandon() noexcept override {}
  void finish() noexcept override { finished_ = true; }

 private:
  // MPI has no call that waits for a limited time: at first with no pause, then with longer and longer ones.
  static void wait(int idle) {
    if (idle < 2000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(50 + (idle - 2000), 1000)));
    }
  }

  const Library& mpi_ = Library::get();
  bool started_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<Transport> connect_mpi(int& rank, int& count) {
  const Library& mpi = Library::get();
  int running = 0;
  mpi.initialized(&running);
  if (running == 0) {
    int provided = 0;
    if (mpi.init_thread(nullptr, nullptr, kThreadSerialized, &provided) != 0 || provided < kThreadSerialized) {
      throw Error("ranks", "transport", "an MPI whose calls any thread may make", "one that cannot be started so");
    }
  }
  mpi.comm_set_errhandler(mpi.world, mpi.errors_return);
  mpi.comm_rank(mpi.world, &rank);
  mpi.comm_size(mpi.world, &count);
  return std::make_unique<MpiTransport>(running == 0);
}

}  // namespace thalweg::comm
