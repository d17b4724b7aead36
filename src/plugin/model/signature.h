// The model's inputs and outputs, so that a copy across its border can be named: onnxruntime says only shape and type.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/type.h"
#include "plugin/host/api_version.h"

namespace encore::plugin {

class Signature {
 public:
  struct Border {
    std::string name;
    device::Type type = device::Type::undefined;
    std::optional<std::vector<int64_t>> dims = {};  // -1: unknown
    std::string maker = {};                         // of an output: "by Neg node 'minus'", or "as an initializer"
    std::vector<std::string> dim_names = {};        // empty ones: of a known length, or of one without a name
  };

  Signature() = default;
  explicit Signature(const OrtGraph* graph);
  Signature(std::vector<Border> inputs, std::vector<Border> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  bool has_input(const std::string& name) const;
  bool has_output(const std::string& name) const;
  // Names of the inputs' dimensions.
  std::set<std::string> dimensions() const;
  // "input 'x' (float[1,3,224,224])", or what can be said if no border, or more than one, fits.
  std::string describe_input(device::Type type, const std::vector<int64_t>& dims) const;
  std::string describe_output(device::Type type, const std::vector<int64_t>& dims) const;
  // ", by Shape node 'shape'" of the output that fits; empty if none does, or one that nothing is known of.
  std::string makers(device::Type type, const std::vector<int64_t>& dims) const;

 private:
  std::vector<Border> inputs_, outputs_;
};

}  // namespace encore::plugin
