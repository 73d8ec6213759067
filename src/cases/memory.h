#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "thalweg/device_memory.h"
#include "thalweg/tensor.h"

namespace thalweg::cases {

// The tensors of one problem, each between guard bands. reset() restores the state before a run: outputs filled with
// NaN (bytes 0xFF), inputs and in-place tensors as made. check() describes forbidden writes.
class Memory {
 public:
  enum class Layout { kContiguous, kStrided };

  // kStrided: tensors made from now on are views of larger ones, in which rows and heads are not contiguous.
  void set_layout(Layout layout) { layout_ = layout; }

  using Generator = std::function<double()>;

  // Values are generated in row-major order and rounded to the dtype. Plain dtypes only.
  Tensor input(DType dtype, const std::vector<std::int64_t>& shape, const Generator& generator);
  // For block formats: generates the bytes of each innermost row of whole blocks.
  Tensor input_bytes(DType dtype, const std::vector<std::int64_t>& shape,
                     const std::function<void(void*, std::int64_t)>& row);
  Tensor output(DType dtype, const std::vector<std::int64_t>& shape);
  // Read and written by the run.
  Tensor in_out(DType dtype, const std::vector<std::int64_t>& shape, const Generator& generator);
  // Makes an existing input writable too.
  Tensor also_output(const ConstTensor& input);

  // Call after writing to an input directly.
  void refresh(const ConstTensor& input);

  void reset();
  // Whether nothing at all has been written since the last reset().
  bool untouched() const;
  // Checksum of all bytes: equal for runs with the same bits.
  std::uint64_t checksum() const;
  // Describes a forbidden write ("guard of output 2 overwritten"), empty if there is none.
  std::string check() const;

  // For a device that cannot access host memory: upload() copies all tensors, guard bands included, to the device;
  // download() copies them back; on_device() returns the device's view of a tensor.
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
    unsigned char* begin = nullptr;  // 64-byte aligned, between guard bands of kGuard bytes
    std::size_t bytes = 0;
    Role role = Role::kInput;
    Tensor view;
    std::uint64_t checksum = 0;           // of an input
    std::vector<unsigned char> original;  // of an in-place tensor
    DeviceMemory copy;                    // on the device, guard bands included
  };
  void* address_on_device(const void* address) const;

  Buffer& allocate(DType dtype, const std::vector<std::int64_t>& shape, Role role);
  void remember(Buffer& buffer);

  Layout layout_ = Layout::kContiguous;
  std::vector<Buffer> buffers_;
};

// Calls row(bytes, first_index, count) for each innermost row, in row-major order.
void for_each_row(const Tensor& tensor, const std::function<void(void*, std::int64_t, std::int64_t)>& row);

// Writes and reads one value of a plain dtype.
double read_element(DType dtype, const void* row, std::int64_t i);
void write_element(DType dtype, void* row, std::int64_t i, double value);

}  // namespace thalweg::cases
