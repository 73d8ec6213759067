#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/runtime.h"

namespace thalweg::decode {

// A model's weights in a device's memory: copies of the host's, in one block. Projections that read the same input lie
// side by side if their types agree, so that one matmul runs them.
class DeviceWeights {
 public:
  // Lays them out; nothing is allocated or copied yet. `host` must outlive load(), and where the device reads the
  // host's memory, this: then the views are of `host`, and matrices that are not neighbors there stay apart.
  // `mtp`: with the MTP layer, which the model has.
  DeviceWeights(const checkpoint::ModelConfig& config, const checkpoint::Weights& host, const Runtime& runtime,
                bool mtp);
  ~DeviceWeights();
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  std::size_t bytes() const { return bytes_; }
  // Views; without memory before load().
  const checkpoint::Weights& weights() const { return weights_; }

  // Allocates and copies, reading the next block from the host while one is on its way. `progress`, if given, gets the
  // fraction done. Throws Error if the device has too little memory.
  void load(const std::function<void(double)>& progress);

 private:
  // Host memory that goes to an offset of the block.
  struct Part {
    const std::byte* from;
    std::size_t bytes;
    std::size_t offset;
  };
  // A view that gets its address when the block has one.
  struct View {
    ConstTensor* tensor;
    std::size_t offset;
  };

  // Makes room for a tensor's elements, contiguous, and returns where; the same host memory is stored once.
  std::size_t add_part(const ConstTensor& source);
  void place(ConstTensor& tensor);
  void share(ConstTensor& tensor);  // as it is, in the host's memory
  // Matrices [N_i,K], one after the other; `joined` becomes all of them, and stays undefined if one is absent or the
  // types differ.
  bool place_together(std::initializer_list<ConstTensor*> matrices, ConstTensor& joined);
  void place_layer(checkpoint::LayerWeights& layer);
  void copy_parts(const std::function<void(double)>& progress);

  const Runtime& runtime_;
  checkpoint::Weights weights_;
  std::vector<float> frequencies_;
  std::vector<Part> parts_;
  std::vector<View> views_;
  std::map<std::pair<const void*, std::size_t>, std::size_t> places_;  // offsets by host address and bytes
  std::size_t bytes_ = 0;
  std::vector<const void*> mapped_;  // host memory that the device reads
  DeviceMemory memory_;
};

}  // namespace thalweg::decode
