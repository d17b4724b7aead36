// What com.microsoft's attentions do before the attention itself: they find heads in packed inputs, add a projection's
// bias to them, and put keys and values behind those of the past.
#pragma once
#include <vector>

#include "ops/attention/dense/attend.h"

namespace encore::ops {

struct Heads {
  HeadRows view;
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
};
// Of rows [batch, row, width] whose heads are neighbours, or `apart` elements from each other.
Heads heads_in_rows(const void* data, int64_t batch, int64_t rows, int64_t heads, int64_t size, int64_t width,
                    int64_t apart = 0);
// Of [batch, head, capacity, size].
Heads heads_of_cache(const void* data, int64_t batch, int64_t heads, int64_t rows, int64_t size, int64_t capacity);

// Keys or values of the past, and where they are to be with the new ones: both [batch, head, capacity, size].
struct Cache {
  const void* past = nullptr;
  int64_t past_rows = 0, past_capacity = 0;
  void* present = nullptr;  // may be the past itself
  int64_t capacity = 0;     // of present
};

// Sequences without padding, one behind the other.
struct Sequences {
  const int32_t* starts = nullptr;  // of each batch, and then the end of the last one
  int64_t tokens = 0;               // in all
};

// Collects what is to be moved, which one launch does.
class HeadMoves {
 public:
  HeadMoves(Context& context, Type type) : context_(context), type_(type) {}
  // What is read are rows of sequences, as of a single batch, and zeros stand for their padding.
  HeadMoves(Context& context, Type type, const Sequences& from) : context_(context), type_(type), from_(from) {}
  // Only moves them, in memory of their own.
  void copy(Heads& heads) { move(heads, nullptr); }
  // Adds the bias [head, size], if there is one, in memory of its own.
  void add_bias(Heads& heads, const void* bias) {
    if (bias) move(heads, bias);
  }
  // Puts them behind the past in present, or in memory of its own if that has none. Makes `heads` the whole.
  void append(Heads& heads, const void* bias, const Cache& cache);
  void run();

 private:
  struct Move {
    HeadRows from, to;
    const void* bias;
    int64_t batch, heads, rows, size;
  };
  void move(Heads& heads, const void* bias);
  template <class T, bool kSequences>
  void launch() const;
  void* scratch(const Heads& heads, int64_t rows);

  Context& context_;
  Type type_;
  Sequences from_;
  std::vector<Move> moves_;
};

// Where `at` begins `elements` further on.
const void* offset(const void* at, int64_t elements, Type type);
void* offset(void* at, int64_t elements, Type type);

// The scale of scores: the attribute, which is zero for none, or what is usual for the size.
double scale_of(float attribute, int64_t head_size);

// The host's one number of how much of a shared buffer is past; `capacity` is what the buffer holds.
int64_t past_rows_of(const Tensor& tensor, int64_t new_rows, int64_t capacity);

}  // namespace encore::ops
