// Rows that ids pick from tables, and others, are added, and each sum is normalised: what models have before their
// first layer.
#pragma once
#include <array>

#include "ops/elementwise/any_floats.h"
#include "ops/index/indices.h"
#include "ops/op.h"

namespace encore::ops {

inline constexpr int kMostEmbeddings = 3;

// What is added in row i: of the table that which the id of i names, or without ids the i-th; both begin again after so
// many.
struct EmbeddingTerm {
  const void* table = nullptr;
  int64_t count = 0;  // of its rows
  Indices ids = {};
  int64_t repeats = 1;
  float factor = 1;
};

// All have one type, but for gamma and beta, which may be float.
struct NormedEmbeddings {
  int64_t rows, width;
  std::array<EmbeddingTerm, kMostEmbeddings> terms;  // without a table there is none, nor any behind it
  AnyFloats gamma, beta;                             // rows; beta may be null
  void* sum = nullptr;
  void* y;
  double epsilon;
  bool centred = true;           // false: the mean is taken as zero
  bool rounds = false;           // products and sums are rounded to the type, one after the other
  bool counts_from_end = false;  // ids below zero do
};
void normalize_embeddings(Context& context, const NormedEmbeddings& norm, Type type);

}  // namespace encore::ops
