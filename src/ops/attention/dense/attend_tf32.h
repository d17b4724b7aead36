// Attention of floats on tensor cores, as TF32: one kernel, whose scores are never in memory.
#pragma once
#include <optional>

#include "ops/attention/dense/attend.h"

namespace encore::ops {

// How many rows of queries a block has, and how its warps share rows and keys out.
enum class Tf32Way { few, some, many };
inline constexpr int kTf32Ways = 3;

// What queries get of which all keys are masked: zeros, as attention has it; or what a softmax of sums with the mask
// has, which is no number, or is replaced by zeros wherever it is none.
enum class Blind { zeros, no_number, zeros_for_no_number };

// Whether the kernel takes the problem, and the device has room for this way of it: all have for many rows.
bool fits_tf32(const Attend& problem);
bool has_room_for_tf32(const Context& context, const Attend& problem, Tf32Way way);
// The way that is taken by itself, and how long it takes.
struct Tf32Estimate {
  Tf32Way way;
  double us;
};
Tf32Estimate estimate_tf32(const Context& context, const Attend& problem);
void attend_tf32(Context& context, const Attend& problem, Tf32Way way, Blind blind);

// Whether it is the one to take, where there are operators for what it does not take:
bool suits_tf32(const Attend& problem);
// or in place of products with a softmax between them (attend_products.h).
bool beats_products(const Context& context, const Attend& problem);
void attend_tf32(Context& context, const Attend& problem, Blind blind = Blind::zeros);

}  // namespace encore::ops
