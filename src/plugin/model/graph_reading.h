// What graphs of onnxruntime's consist of.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plugin/host/api_version.h"

namespace encore::plugin {

std::vector<const OrtNode*> nodes_of(const OrtGraph* graph);
std::vector<std::string> names_of(const std::vector<const OrtValueInfo*>& values);
// The names of a graph's own inputs and outputs.
std::vector<std::string> inputs_of(const OrtGraph* graph);
std::vector<std::string> outputs_of(const OrtGraph* graph);
std::vector<const OrtValueInfo*> input_values_of(const OrtGraph* graph);
std::vector<const OrtValueInfo*> output_values_of(const OrtGraph* graph);
bool is_constant(const OrtValueInfo* value);
bool is_read(const OrtNode* node, size_t output);  // or goes out of the graph
// The names of a tensor's dimensions, empty where there is none; nothing if this is no tensor of known rank.
std::vector<std::string> dimension_names(const OrtValueInfo* value);
std::string label_of(const OrtNode* node);                      // "Conv node 'conv1'"
std::string span_of(const std::vector<const OrtNode*>& nodes);  // "Conv node 'conv1' to Gemm node 'head'"
std::string place_of(const OrtGraph* graph);  // "Loop node 'decode', body 'step'"; empty of the model itself
// Whether it is the body of an operator other than If, Loop and Scan. BeamSearch and its kin, which are on the CPU,
// have the values of theirs in host memory and copy none. Of SequenceMap onnxruntime makes nodes, once no provider has
// taken it; these get a copy of the body, in which fused nodes are unknown, and onnxruntime asks for that again.
bool is_of_others(const OrtGraph* graph);
// The provider that has the node so far; empty if none has.
std::string_view ep_of(const OrtNode* node);

}  // namespace encore::plugin
