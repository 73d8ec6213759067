#include "model/rows.h"

#include <cstring>

#include "core/float16.h"
#include "core/threads.h"

namespace thalweg::model {
namespace {

float* row_of(const Tensor& tensor, std::int64_t t) { return static_cast<float*>(tensor.row(t)); }
const float* row_of(const ConstTensor& tensor, std::int64_t t) { return static_cast<const float*>(tensor.row(t)); }

void copy(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

void add_rows(const Tensor& h, const ConstTensor& y, const Stream& stream) {
  const std::int64_t width = h.dim(1);
  parallel_for(stream, h.dim(0), [&](std::int64_t t, int) {
    float* sum = row_of(h, t);
    const float* more = row_of(y, t);
    for (std::int64_t i = 0; i < width; ++i) sum[i] += more[i];
  });
}

void store_in_cache(const ConstTensor& rows, std::span<const CachePlace> places, const Tensor& cache,
                    const Stream& stream) {
  const std::int64_t heads = rows.dim(1);
  const std::int64_t width = rows.dim(2);
  parallel_for(stream, rows.dim(0), [&](std::int64_t t, int) {
    const CachePlace& place = places[static_cast<std::size_t>(t)];
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto* from = static_cast<const float*>(rows.row(t, h));
      void* to = cache.row(place.slot, place.position, h);
      if (cache.dtype == DType::kF32) {
        copy(from, width, static_cast<float*>(to));
        continue;
      }
      auto* halves = static_cast<std::uint16_t*>(to);
      for (std::int64_t i = 0; i < width; ++i) halves[i] = f32_to_f16(from[i]);
    }
  });
}

void split_key_heads(const ModelConfig& config, const ConstTensor& rows, const Tensor& qkv, const Tensor& z,
                     const Stream& stream) {
  const std::int64_t key = config.key_dim;
  const std::int64_t values = std::int64_t{config.value_heads / config.key_heads} * config.value_dim;
  parallel_for(stream, rows.dim(0), [&](std::int64_t t, int) {
    const float* from = row_of(rows, t);
    float* q = row_of(qkv, t);
    float* k = q + config.key_channels();
    float* v = k + config.key_channels();
    float* gate = row_of(z, t);
    for (int h = 0; h < config.key_heads; ++h) {
      copy(from, key, q + h * key);
      copy(from + key, key, k + h * key);
      copy(from + 2 * key, values, v + h * values);
      copy(from + 2 * key + values, values, gate + h * values);
      from += 2 * key + 2 * values;
    }
  });
}

}  // namespace thalweg::model
