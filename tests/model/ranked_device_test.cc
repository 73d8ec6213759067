// What a rank's device needs beside a GPU: connecting, the columns of the logits, and giving up ranks that are lost.
// The devices are threads that sum on the host.

#include "decode/ranked_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <thread>

#include "cuda/ranks/nccl_library.h"
#include "model/support.h"
#include "thalweg/ranks.h"

namespace thalweg::decode {
namespace {

// What a test has done to the devices.
struct Devices {
  std::string unavailable;
  std::string broken;              // what failure() says
  std::string refused;             // what connect() throws
  std::atomic<bool> deaf = false;  // connect() waits for it to end
  std::atomic<int> aborted = 0;
  std::atomic<int> connected = 0;
  std::vector<std::shared_ptr<Ranks>> way;  // of their own, by rank
};
Devices* g_devices = nullptr;

class HostSums final : public DeviceCommunicator {
 public:
  explicit HostSums(int rank) : ranks_(g_devices->way[static_cast<std::size_t>(rank)]), rank_(rank) {
    ++g_devices->connected;
  }
  ~HostSums() override { --g_devices->connected; }
  void all_reduce(const Stream&, void* data, DType dtype, std::int64_t count) override {
    ranks_->communicator().all_reduce(data, dtype, count);
  }
  void all_gather(const Stream&, void* data, std::size_t bytes) override {
    const std::byte* const mine = static_cast<std::byte*>(data) + bytes * static_cast<std::size_t>(rank_);
    ranks_->communicator().all_gather(mine, data, bytes);
  }
  void exchange(const Stream&, std::span<const RankTransfer> sends, std::span<const RankTransfer> receives) override {
    std::vector<comm::Send> out;
    std::vector<comm::Receive> in;
    for (const RankTransfer& one : sends) out.push_back({one.rank, one.data, one.bytes});
    for (const RankTransfer& one : receives) in.push_back({one.rank, one.data, one.bytes});
    ranks_->communicator().exchange(out, in);
  }
  std::string failure() override { return rank_ == 0 ? g_devices->broken : std::string(); }
  void abort() noexcept override { ++g_devices->aborted; }

 private:
  std::shared_ptr<Ranks> ranks_;
  int rank_;
};

const DeviceRanks kHostDevices{
    .unavailable = [] { return g_devices->unavailable; },
    .devices = [] { return 8; },
    .make_current = [](Device) {},
    .make_id = [] { return std::vector<std::byte>(5, std::byte{7}); },
    .connect = [](Device, std::span<const std::byte> id, int rank, int) -> std::unique_ptr<DeviceCommunicator> {
      EXPECT_EQ(std::vector<std::byte>(id.begin(), id.end()), std::vector<std::byte>(5, std::byte{7}));
      if (!g_devices->refused.empty()) throw Error("ranks", "devices", "another one", g_devices->refused);
      while (g_devices->deaf) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return std::make_unique<HostSums>(rank);
    },
};

class RankedDeviceThreads : public testing::Test {
 protected:
  RankedDeviceThreads() { g_devices = &devices_; }
  ~RankedDeviceThreads() override { g_devices = nullptr; }

  // body(device, rank, host) on each of `count` ranks; returns what they threw.
  template <class Body>
  std::vector<std::string> run(int count, double timeout, const Body& body) {
    devices_.way = Ranks::in_process(count);
    auto ranks = Ranks::in_process(count, timeout);
    std::vector<std::string> errors(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int r = 0; r < count; ++r) {
      threads.emplace_back([&, r] {
        auto& mine = ranks[static_cast<std::size_t>(r)];
        try {
          Runtime runtime(kCpu, 1, {}, true);
          RankedDevice device(runtime, kHostDevices, mine->communicator());
          body(device, runtime, mine->communicator());
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(r)] = error.what();
        }
        mine.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    devices_.way.clear();
    return errors;
  }

  Devices devices_;
};

TEST_F(RankedDeviceThreads, GathersTheColumnsOfTheLogits) {
  for (const int count : {1, 2, 3}) {
    const auto errors = run(count, 20, [&](RankedDevice& device, Runtime&, comm::Communicator& host) {
      // One row of a width that divides, and what does not lie in order.
      for (const auto& [rows, vocabulary] : {std::pair(1, 12), std::pair(1, 13), std::pair(3, 12), std::pair(2, 7)}) {
        std::vector<float> memory(static_cast<std::size_t>(rows * vocabulary), NAN);
        const Tensor logits(memory.data(), DType::kF32, {rows, vocabulary}, kCpu);
        device.begin_columns(logits);
        const Tensor mine = device.mine(logits);
        for (int row = 0; row < rows; ++row) {
          for (int column = 0; column < mine.dim(1); ++column) {
            const int at = vocabulary * host.rank() / host.size() + column;
            static_cast<float*>(mine.row(row))[column] = static_cast<float>(100 * row + at) - 50.0F;
          }
        }
        device.end_columns(logits);
        for (int row = 0; row < rows; ++row) {
          for (int column = 0; column < vocabulary; ++column) {
            ASSERT_EQ(static_cast<float*>(logits.row(row))[column], static_cast<float>(100 * row + column) - 50.0F)
                << count << " ranks, " << rows << " rows of " << vocabulary << ", " << row << ", " << column;
          }
        }
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  EXPECT_EQ(devices_.connected, 0);
  EXPECT_EQ(devices_.aborted, 0);
}

TEST_F(RankedDeviceThreads, SayWhyThereIsNoWay) {
  devices_.unavailable = "no way";
  for (const std::string& error : run(2, 20, [](RankedDevice&, Runtime&, comm::Communicator&) {})) {
    EXPECT_NE(error.find("no way"), std::string::npos) << error;
  }
}

TEST_F(RankedDeviceThreads, SayWhyTheyDoNotConnect) {
  devices_.refused = "the same device twice";
  for (const std::string& error : run(2, 20, [](RankedDevice&, Runtime&, comm::Communicator&) {})) {
    EXPECT_NE(error.find("the same device twice"), std::string::npos) << error;
  }
}

TEST_F(RankedDeviceThreads, DoNotConnectForever) {
  devices_.deaf = true;
  const auto errors = run(2, 0.5, [](RankedDevice&, Runtime&, comm::Communicator&) { ADD_FAILURE() << "connected"; });
  // The threads that wait are left behind, until they have what they wait for.
  devices_.way = Ranks::in_process(2);
  devices_.deaf = false;
  // The first that loses its patience ends, which the other may see before it loses its own.
  const auto is_patience = [](const std::string& error) { return error.find("connect within") != std::string::npos; };
  EXPECT_GE(std::count_if(errors.begin(), errors.end(), is_patience), 1);
  for (const std::string& error : errors) {
    EXPECT_TRUE(is_patience(error) || error.find("has ended") != std::string::npos) << error;
  }
  for (int i = 0; i < 400; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (i > 20 && devices_.connected == 0) break;
  }
  EXPECT_EQ(devices_.connected, 0);
}

// Waits on the device as a call would that another rank does not answer, until the ranks are given up.
void wait_in_vain(RankedDevice& device, int aborted_before) {
  const RankedDevice::Working working(&device);
  for (int i = 0; i < 2000 && g_devices->aborted == aborted_before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  device.check();
}

TEST_F(RankedDeviceThreads, AreGivenUpWhenOneEnds) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run(2, 30, [&](RankedDevice& device, Runtime&, comm::Communicator& host) {
    if (host.rank() == 0) wait_in_vain(device, 0);
  });
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("has ended"), std::string::npos) << errors[0];
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(RankedDeviceThreads, AreGivenUpWhenOneHangs) {
  std::promise<void> given_up;
  std::shared_future<void> until = given_up.get_future().share();
  const auto errors = run(2, 0.6, [&](RankedDevice& device, Runtime&, comm::Communicator& host) {
    if (host.rank() == 1) return until.wait();
    try {
      wait_in_vain(device, 0);
    } catch (...) {
      given_up.set_value();
      throw;
    }
    given_up.set_value();
  });
  EXPECT_NE(errors[0].find("0.6 s"), std::string::npos) << errors[0];
}

TEST_F(RankedDeviceThreads, AreGivenUpWhenTheirDevicesFail) {
  devices_.broken = "a cable";
  const auto errors = run(1, 30, [&](RankedDevice& device, Runtime&, comm::Communicator& host) {
    wait_in_vain(device, 0);
    EXPECT_FALSE(host.failure().empty());
  });
  EXPECT_NE(errors[0].find("a cable"), std::string::npos) << errors[0];
}

// Work that takes long, but comes to ends, is none that hangs.
TEST_F(RankedDeviceThreads, AreNotGivenUpWhileTheyWork) {
  const auto errors = run(2, 1.5, [&](RankedDevice& device, Runtime& runtime, comm::Communicator& host) {
    {
      const RankedDevice::Working working(&device);
      for (int i = 0; i < 20; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        runtime.wait();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2000));  // idle
    device.check();
    host.barrier(10);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(devices_.aborted, 0);
}

TEST(Nccl, SaysWhatIsMissing) {
  const cu::Nccl absent = cu::load_nccl("libnccl-that-is-not-there.so.2");
  EXPECT_NE(absent.unavailable.find("libnccl-that-is-not-there.so.2"), std::string::npos) << absent.unavailable;
  EXPECT_EQ(absent.all_reduce, nullptr);
  const cu::Nccl another = cu::load_nccl("libm.so.6");
  EXPECT_NE(another.unavailable.find("has no ncclGetVersion"), std::string::npos) << another.unavailable;
  EXPECT_EQ(another.get_version, nullptr);
}

}  // namespace
}  // namespace thalweg::decode
