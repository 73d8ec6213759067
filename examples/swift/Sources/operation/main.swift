// A matmul over Q8_0 blocks, compared with plain arithmetic in Double; then the error of a call that is wrong.

import CThalweg

let (T, N, K) = (5, 48, 64)
let cpu = thalweg_device(type: Int32(THALWEG_CPU.rawValue), index: 0)

struct Refused: Error {
  let message: String
}

func check(_ status: thalweg_status) throws {
  guard status == THALWEG_OK else { throw Refused(message: String(cString: thalweg_error_message())) }
}

func tensor(_ data: UnsafeMutableRawPointer, _ dtype: thalweg_dtype, _ rows: Int, _ columns: Int) -> thalweg_tensor {
  thalweg_tensor_of(data, Int32(dtype.rawValue), cpu, 2, [Int64(rows), Int64(columns)])
}

func linear(_ args: inout thalweg_linear_args) throws {
  var bytes = 0
  try check(thalweg_linear_workspace_size(&args, nil, &bytes))
  let scratch = UnsafeMutableRawPointer.allocate(byteCount: max(bytes, 64), alignment: 64)
  defer { scratch.deallocate() }
  try check(thalweg_linear(&args, scratch, bytes, nil))
}

// Memory that stays where it is, for as long as tensors point to it.
let x = UnsafeMutablePointer<Float>.allocate(capacity: T * K)
let weight = UnsafeMutablePointer<Float>.allocate(capacity: N * K)
let y = UnsafeMutablePointer<Float>.allocate(capacity: T * N)
let blocks = UnsafeMutableRawPointer.allocate(
  byteCount: Int(thalweg_bytes_of(Int32(THALWEG_Q8_0.rawValue), Int64(N * K))), alignment: 64)
for i in 0..<T * K { x[i] = Float.random(in: -1...1) }
for i in 0..<N * K { weight[i] = Float.random(in: -1...1) }
for i in 0..<T * N { y[i] = .nan }

var pack = thalweg_quantize_args()
thalweg_quantize_args_init(&pack)
pack.values = tensor(weight, THALWEG_F32, N, K)
pack.blocks = tensor(blocks, THALWEG_Q8_0, N, K)
try check(thalweg_quantize(&pack, nil, 0, nil))

var args = thalweg_linear_args()
thalweg_linear_args_init(&args)
args.x = tensor(x, THALWEG_F32, T, K)
args.weight = tensor(blocks, THALWEG_Q8_0, N, K)
args.y = tensor(y, THALWEG_F32, T, N)
try linear(&args)

var (error, size) = (0.0, 0.0)
for t in 0..<T {
  for n in 0..<N {
    var exact = 0.0
    for k in 0..<K { exact += Double(x[t * K + k]) * Double(weight[n * K + k]) }
    error += (Double(y[t * N + n]) - exact) * (Double(y[t * N + n]) - exact)
    size += exact * exact
  }
}
let nmse = error / size
print("squared error over squared result \(nmse)")
// What rounding weights to 8 bits costs; NaN fails too.
guard nmse > 1e-8 && nmse < 1e-4 else { fatalError("the result is not the product") }

args.y = tensor(y, THALWEG_F32, T, N - 1)
do {
  try linear(&args)
  fatalError("a wrong shape was accepted")
} catch let refused as Refused {
  print("refused, as it should be: \(refused.message)")
}
