// Attention over heads, softmax(scale * q kT + mask) v: what ai.onnx's Attention and com.microsoft's kin share. There
// are six ways to compute it, two of them for decoding, where few queries meet many keys. All take any strides, and
// none makes the matrix of scores unless it is asked for.
#pragma once
#include <cstdint>
#include <limits>

#include "ops/attention/kv_cache/cache_quantization.h"
#include "ops/op.h"

namespace encore::ops {

// No count of rows, keys or heads is larger: kernels add a few such numbers in 32 bits.
inline constexpr int64_t kSizeCap = int64_t(1) << 28;

// A tensor [batch, head, row, size] whose last dimension is contiguous. Strides in elements.
struct HeadRows {
  const void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
};

// Which keys a query sees, the mask aside: those of its batch's length, in a window around its position.
struct VisibleKeys {
  const int64_t* lengths = nullptr;    // of each batch, on the device; null: all keys
  const int32_t* last_keys = nullptr;  // or in their place which key is the last
  int beyond_last = 0;                 // how far beyond it these are: 1 where they are lengths
  int64_t before = -1, after = -1;     // how far from its position; below zero: as far as there are keys
  bool from_end = false;               // the last query is at the last key of the length
  int64_t offset = 0;                  // else query i is at offset + i
  bool has_lengths() const { return lengths || last_keys; }
};

// The least that a mask adds of which nothing is known.
inline constexpr double kAnyNumber = -std::numeric_limits<double>::infinity();

// Broadcast to [batch, head, query, key] by strides in elements; keys from `keys` on are unseen.
struct AttentionMask {
  const void* data = nullptr;
  bool boolean = false;  // true: seen; else added to the score, in the type of q
  int64_t batch = 0, head = 0, query = 0, key = 0;
  int64_t keys = 0;
  double least = kAnyNumber;  // that is added
  bool sees = false;          // each row of it leaves a key
};

// A mask as the library reads it: each row of [batch, head, query, key], where all but the last may be 1, and which
// rows see no key.
struct MaskBias {
  Shape shape;
  void* data = nullptr;
  bool* blind = nullptr;
  bool is_made = false;
};

// Scores as an output [batch, head, query, key].
struct ScoresOutput {
  enum Stage { scaled, capped, masked, softmax, seen };  // seen: masked, and zeros for keys out of sight
  void* data = nullptr;
  Stage stage = scaled;
};

struct Attend {
  Type type = Type::f32;
  bool tf32 = false;                           // floats may be rounded to TF32
  int64_t batch = 0, heads = 0, kv_heads = 0;  // heads / kv_heads neighbours share a head of k and v
  int64_t queries = 0, keys = 0, head_size = 0, value_size = 0;
  HeadRows q, k, v, y;  // y is written
  // k and v are a KV cache of the node's own: after a batch's last key there may be anything, and NaN or infinity
  // there may be overwritten.
  bool is_cache = false;
  // Keys and values may be codes, both of one kind: k and v are strides in bytes then.
  CacheQuantization k_codes, v_codes;
  double scale = 1;
  double softcap = 0;  // softcap * tanh(score / softcap), before the mask; zero: none
  VisibleKeys visible;
  AttentionMask mask;
  MaskBias bias;  // where others by the same mask find it, if it has the shape that is wanted here
  // Attention sinks, one of each head, on the device and in the type of q: a score that takes its part of the softmax
  // and has no key. Null: there are none.
  const void* sinks = nullptr;
  ScoresOutput scores;
};

// A query that sees no key gets zeros. Lengths out of range are reported, and cut to what there is.
void check_sizes(const Attend& problem);  // throws if they are more than kernels count
void attend(Context& context, const Attend& problem);
// Of cleared scratch: what libraries keep account in of who has which tile.
inline constexpr size_t kAttentionClears = 256;

// Of the bias that attend() makes for the library, or without elements: it makes none.
Shape bias_shape(Context& context, const Attend& problem);
Shape blind_shape(const Shape& bias);

// The ways. Decode: up to 32 rows or 8 queries of halves, on tensor cores, with keys split over blocks (split-K). More
// than these fit, for which the library is better:
bool suits_grouped_decode(const Attend& problem);
bool fits_grouped_decode(const Attend& problem);
void attend_grouped_decode(Context& context, const Attend& problem);
// The same over a quantized KV cache; for other ways it is dequantized first.
bool suits_quantized_cache(const Attend& problem);
void attend_quantized_cache(Context& context, const Attend& problem);
Attend dequantized_cache(Context& context, const Attend& problem);
// Decode for other types and layouts, likewise split:
bool suits_decode(const Attend& problem);
void attend_decode(Context& context, const Attend& problem);
// Of halves and so few keys that a block holds all of a head's at once:
bool suits_short(const Context& context, const Attend& problem);
void attend_short(Context& context, const Attend& problem);
// Of floats as TF32: attend_tf32.h.
// By a library; false if it does not serve.
bool attend_dnn(Context& context, const Attend& problem);
Shape dnn_bias_shape(Context& context, const Attend& problem);
// Prefill, and all else: tiles of queries and keys with a running softmax, as flash attention has it.
void attend_prefill(Context& context, const Attend& problem);

}  // namespace encore::ops
