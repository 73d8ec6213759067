#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "thalweg/device_memory.h"
#include "thalweg/tensor.h"

namespace thalweg::cases {

// The tensors of one problem, each between guard bands. reset() puts everything as it was before a run: outputs full of
// NaN (bytes 0xFF), inputs and in-place tensors as made. check() tells what a run did that it must not do.
class Memory {
 public:
  enum class Layout { kContiguous, kStrided };

  // kStrided: tensors made from here on are slices of larger ones, so that rows and heads do not lie next to each
  // other.
  void set_layout(Layout layout) { layout_ = layout; }

  using Generator = std::function<double()>;

  // Made in row-major order, rounded to the dtype. Plain dtypes only.
  Tensor input(DType dtype, const std::vector<std::int64_t>& shape, const Generator& generator);
  // Block formats: bytes as they come, innermost rows of whole blocks.
  Tensor input_bytes(DType dtype, const std::vector<std::int64_t>& shape,
                     const std::function<void(void*, std::int64_t)>& row);
  Tensor output(DType dtype, const std::vector<std::int64_t>& shape);
  // Read and written by the run.
  Tensor in_out(DType dtype, const std::vector<std::int64_t>& shape, const Generator& generator);
  // Makes an existing input writable too.
  Tensor also_output(const ConstTensor& input);

  // To be called after writing to an input by hand.
  void refresh(const ConstTensor& input);

  void reset();
  // Whether nothing at all has been written since the last reset().
  bool untouched() const;
  // Of all bytes: two runs that left the same bits have the same.
  std::uint64_t checksum() const;
  // Empty, or what is wrong: "guard of output 2 overwritten".
  std::string check() const;

  // For a device that does not see host memory: copies of all tensors on it, guard bands included. upload() makes them
  // and fills them with what is here; download() brings back what a run made of them; on_device() is the view there of
  // one that lies here.
  void upload(const Stream& stream);
  void download(const Stream& stream);
  template <class Pointer>
  BasicTensor<Pointer> on_device(BasicTensor<Pointer> view, Device device) const {
    view.device = device;
    if (view.data != nullptr) view.data = address_on_device(view.data);
    return view;
  }

 private:
  enum class Role { kInput, kOutput, kInOut };
  struct Buffer {
    std::unique_ptr<unsigned char[]> storage;
    unsigned char* begin = nullptr;  // 64-byte aligned, kGuard bytes before and after it are the bands
    std::size_t bytes = 0;
    Role role = Role::kInput;
    Tensor view;
    std::uint64_t checksum = 0;           // of an input
    std::vector<unsigned char> original;  // of an in-place tensor
    DeviceMemory copy;                    // of the bytes from the first guard band to the end of the last
  };
  void* address_on_device(const void* address) const;

  Buffer& allocate(DType dtype, const std::vector<std::int64_t>& shape, Role role);
  void remember(Buffer& buffer);

  Layout layout_ = Layout::kContiguous;
  std::vector<Buffer> buffers_;
};

// Calls row(bytes, first_index, count) for each innermost row, in row-major order.
void for_each_row(const Tensor& tensor, const std::function<void(void*, std::int64_t, std::int64_t)>& row);

// One value in and out of a plain dtype.
double read_element(DType dtype, const void* row, std::int64_t i);
void write_element(DType dtype, void* row, std::int64_t i, double value);

}  // namespace thalweg::cases
