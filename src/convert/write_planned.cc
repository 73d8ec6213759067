#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "convert/tensor_plan.h"
#include "core/threads.h"
#include "quant/pack.h"
#include "quant/unpack.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

constexpr std::int64_t kRunValues = std::int64_t{8} << 20;
constexpr std::int64_t kTaskValues = std::int64_t{64} << 10;
constexpr float kLargestF16 = 65504.0F;

// Reads the rows of one plan.
class RowReader {
 public:
  explicit RowReader(const TensorPlan& plan)
      : plan_(plan), length_(plan.shape.back()), rows_of_source_(plan.sources.front().size() / length_) {
    for (const ConstTensor& source : plan.sources) sources_.push_back(reshape(source, {rows_of_source_, length_}));
    const ConstTensor& source = plan.sources.front();
    copies_ = is_block_format(source.dtype) && source.dtype == plan.dtype && plan.columns.empty() &&
              plan.change == TensorPlan::Change::kNone;
  }

  std::int64_t length() const { return length_; }

  // Computes row `index` into `to`. Returns false if a value does not fit. `values` has room for two rows.
  bool row(std::int64_t index, float* values, void* to) const {
    const std::int64_t from = plan_.rows.empty() ? index : plan_.rows[static_cast<std::size_t>(index)];
    const ConstTensor& source = sources_[static_cast<std::size_t>(from / rows_of_source_)];
    const void* data = source.row(from % rows_of_source_);
    if (copies_) {
      std::memcpy(to, data, static_cast<std::size_t>(bytes_of(source.dtype, length_)));
      return true;
    }
    unpack(source.dtype, data, length_, values);
    if (!plan_.columns.empty()) {
      float* moved = values + length_;
      for (std::int64_t i = 0; i < length_; ++i) moved[i] = values[plan_.columns[static_cast<std::size_t>(i)]];
      values = moved;
    }
    if (!change(values)) return false;
    pack(plan_.dtype, values, length_, to);
    return true;
  }

 private:
  bool change(float* values) const {
    const float limit = plan_.dtype == DType::kF16 ? kLargestF16 : std::numeric_limits<float>::max();
    bool fits = true;
    for (std::int64_t i = 0; i < length_; ++i) {
      if (plan_.change == TensorPlan::Change::kPlusOne) values[i] += 1.0F;
      if (plan_.change == TensorPlan::Change::kMinusExp) values[i] = -std::exp(values[i]);
      fits &= std::abs(values[i]) <= limit;  // NaN does not
    }
    return fits;
  }

  const TensorPlan& plan_;
  std::int64_t length_;
  std::int64_t rows_of_source_;
  std::vector<ConstTensor> sources_;  // as [rows_of_source_,length_]
  bool copies_ = false;
};

void write_tensor(const TensorPlan& plan, const std::string& path, io::GgufWriter& writer, const Stream& stream,
                  std::vector<char>& data, std::vector<float>& scratch) {
  const RowReader reader(plan);
  const std::int64_t length = reader.length();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < plan.shape.size(); ++i) rows *= plan.shape[i];
  const std::int64_t row_bytes = bytes_of(plan.dtype, length);
  const std::int64_t run_rows = std::max<std::int64_t>(1, kRunValues / length);
  const std::int64_t task_rows = std::max<std::int64_t>(1, kTaskValues / length);
  scratch.resize(static_cast<std::size_t>(thread_count(stream) * 2 * length));
  data.resize(static_cast<std::size_t>(std::min(run_rows, rows) * row_bytes));
  for (std::int64_t first = 0; first < rows; first += run_rows) {
    const std::int64_t count = std::min(run_rows, rows - first);
    std::atomic<bool> fits{true};
    parallel_for(stream, (count + task_rows - 1) / task_rows, [&](std::int64_t task, int worker) {
      float* values = scratch.data() + 2 * length * worker;
      const std::int64_t last = std::min(count, (task + 1) * task_rows);
      for (std::int64_t i = task * task_rows; i < last; ++i) {
        if (!reader.row(first + i, values, data.data() + i * row_bytes)) fits = false;
      }
    });
    if (!fits) {
      throw Error(path, "tensor " + plan.source, "finite values that " + std::string(dtype_name(plan.dtype)) + " holds",
                  "NaN, infinity or a number that is too large");
    }
    writer.write(plan.name, data.data(), static_cast<std::size_t>(count * row_bytes));
  }
}

}  // namespace

void write_planned(const std::vector<TensorPlan>& plans, const io::TensorSource& source, const std::string& path,
                   io::GgufWriter& writer, const Stream& stream) {
  for (const TensorPlan& plan : plans) writer.declare(plan.name, plan.dtype, plan.shape);
  std::vector<char> data;
  std::vector<float> scratch;
  for (const TensorPlan& plan : plans) {
    if (std::find(plan.shape.begin(), plan.shape.end(), 0) != plan.shape.end()) continue;
    write_tensor(plan, path, writer, stream, data, scratch);
  }
  source.require_intact();
  writer.finish();
}

}  // namespace thalweg::convert
