// What becomes of the scores that a model of ai.onnx.ml gives a row.
#pragma once
#include <cmath>
#include <limits>

#include "ops/choice.h"
#include "ops/op.h"

namespace encore::ops {

enum class ScoreTransform { none, softmax, logistic, softmax_zero, probit };

inline ScoreTransform score_transform_of(const NodeInfo& node) {
  return read_choice<ScoreTransform>(node, "post_transform", "NONE",
                                     {{"NONE", ScoreTransform::none},
                                      {"SOFTMAX", ScoreTransform::softmax},
                                      {"LOGISTIC", ScoreTransform::logistic},
                                      {"SOFTMAX_ZERO", ScoreTransform::softmax_zero},
                                      {"PROBIT", ScoreTransform::probit}});
}

// Labels are numbers here; strings stay on the CPU.
inline std::vector<int64_t> number_labels(const NodeInfo& node, const char* numbers) {
  const auto strings = node.find_strings("classlabels_strings");
  if (strings && !strings->empty()) fail(Code::not_supported, "labels are strings, which stay on the CPU");
  return node.find_ints(numbers).value_or(std::vector<int64_t>{});
}

DEVICE_FN float logistic_score(float x) {
  const float part = 1.f / (1.f + std::exp(-std::fabs(x)));
  return x < 0 ? 1.f - part : part;
}
// By Winitzki's approximation of the inverse error function, with ai.onnx.ml's constants.
DEVICE_FN float probit_score(float x) {
  const float y = 2.f * x - 1.f, logarithm = std::log((1.f - y) * (1.f + y));
  const float v = 2.f / (3.14159f * 0.147f) + 0.5f * logarithm;
  const float root = std::sqrt(-v + std::sqrt(v * v - 1.f / 0.147f * logarithm));
  return 1.41421356f * (y < 0 ? -root : root);
}

// A single score, and what is left of it for the other class, whose score comes first.
template <class Out>
DEVICE_FN void score_both_classes(ScoreTransform transform, bool mirrored, float score, Out* scores) {
  const bool logistic = transform == ScoreTransform::logistic;
  scores[0] = Out(logistic ? logistic_score(-score) : mirrored ? -score : 1.f - score);
  scores[1] = Out(logistic ? logistic_score(score) : score);
}

// Of one row, in place. Out is float or double; it is computed in float.
template <class Out>
DEVICE_FN void transform_scores(ScoreTransform transform, Out* scores, int64_t count) {
  if (transform == ScoreTransform::none) return;
  if (transform == ScoreTransform::logistic || transform == ScoreTransform::probit) {
    const bool logistic = transform == ScoreTransform::logistic;
    for (int64_t i = 0; i < count; ++i)
      scores[i] = Out(logistic ? logistic_score(float(scores[i])) : probit_score(float(scores[i])));
    return;
  }
  float most = std::numeric_limits<float>::lowest();
  for (int64_t i = 0; i < count; ++i) most = float(scores[i]) > most ? float(scores[i]) : most;
  const bool keeps_zeros = transform == ScoreTransform::softmax_zero;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float score = float(scores[i]);
    if (keeps_zeros && !(score > 0.0000001f || score < -0.0000001f)) {
      scores[i] = Out(score * std::exp(-most));
      continue;
    }
    const float power = std::exp(score - most);
    scores[i] = Out(power);
    sum += power;
  }
  for (int64_t i = 0; i < count; ++i) scores[i] = Out(float(scores[i]) / sum);
}

}  // namespace encore::ops
