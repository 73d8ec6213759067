#pragma once

// Streams of models that live on a device. What is enqueued is kept until the host needs a result of it, and then
// encoded into one command buffer with one encoder: a step is neither cut into many, nor does the host wait inside it.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/device_functions.h"
#include "metal/launch.h"

namespace thalweg::metal {

// How command buffers come about.
struct CommandBuffers {
  std::unique_ptr<Encoder> (*make)();  // committed when the encoder is destroyed
  std::uint64_t (*committed)();        // how many have been
  void (*wait)(std::uint64_t number);  // until so many have finished
};

// A launch with its own parameters.
struct RecordedLaunch {
  Launch launch;
  std::vector<std::byte> parameters;
  std::vector<std::byte> staged;  // shared memory that a copy into private memory reads, if any
};
using LaunchList = std::vector<std::shared_ptr<const RecordedLaunch>>;

class DeviceStream {
 public:
  explicit DeviceStream(const CommandBuffers& buffers);
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  // The one that `stream.native` is; null: a queue of the caller's, or none.
  static DeviceStream* find(const Stream& stream);

  // An encoder of one operation, which begins when what was enqueued before it has finished.
  std::unique_ptr<Encoder> record(std::string_view operation);
  void append(const LaunchList& launches);
  // Everything that `enqueue` puts into the stream, instead of running it.
  LaunchList capture(const std::function<void()>& enqueue);
  void copy(void* to, const void* from, std::size_t bytes);
  void clear(void* memory, std::size_t bytes);
  std::uint64_t commit();           // what was enqueued; returns the number of its command buffer
  void wait(std::uint64_t number);  // for it and all before it
  void finish() { wait(commit()); }

 private:
  // Launches that were committed with staged memory, which is kept until their command buffer has finished.
  struct InFlight {
    std::uint64_t number = 0;
    LaunchList launches;
    std::size_t bytes = 0;  // staged
  };

  void stage(void* to, const void* from, std::size_t bytes);

  CommandBuffers buffers_;
  LaunchList pending_;
  std::size_t pending_bytes_ = 0;  // staged
  std::vector<InFlight> in_flight_;
  LaunchList* captured_ = nullptr;
};

// DeviceFunctions::copy: what touches private memory is copied by a kernel, anything else by the host.
void copy_and_wait(const Stream& stream, void* to, const void* from, std::size_t bytes);

// The functions that do not depend on the system; those for names, memory and streams are the caller's.
ResidentFunctions stream_functions();

}  // namespace thalweg::metal
