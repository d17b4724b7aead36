// What an operator is, and what it sees. Nothing here knows who calls: ONNX Runtime's kernel adapter is one caller.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "device/blas.h"
#include "device/compiler.h"
#include "device/dnn.h"
#include "device/error.h"
#include "device/fault.h"
#include "device/stream.h"
#include "ops/tensor.h"

namespace encore::ops {

using device::StreamRef;

// What a session asks of its operators, and of those who make others of them.
struct Settings {
  bool use_tf32 = true;                 // float products and convolutions may
  bool strict_skip_layer_norm = false;  // SkipLayerNormalization's statistics in twice the precision
  bool fuses_elementwise = true;
  std::shared_ptr<device::Compiler> compiler = {};  // for elementwise programs; null: they are interpreted
};

// A node's attribute; the first one stands for what is none of the others, such as a graph.
using Attribute =
    std::variant<std::monostate, int64_t, float, std::string, std::vector<int64_t>, std::vector<float>, const Tensor*>;
using Attributes = std::map<std::string, Attribute, std::less<>>;

// What is known of a node before it runs. Attributes of another type than asked for are an Error{invalid_input}.
class NodeInfo {
 public:
  virtual ~NodeInfo() = default;
  virtual const std::string& name() const = 0;
  virtual const std::string& domain() const = 0;  // "" for ai.onnx
  virtual const std::string& op_type() const = 0;
  virtual int since_version() const = 0;  // of the schema which the node uses
  virtual int input_count() const = 0;    // trailing absent inputs included
  virtual int output_count() const = 0;
  virtual bool has_input(int i) const = 0;
  virtual bool has_output(int i) const = 0;
  virtual Type input_type(int i) const = 0;  // undefined if absent or not a tensor
  virtual Type output_type(int i) const = 0;
  // Dimensions as far as the model tells them, -1 for unknown ones; empty optional if even the rank is unknown.
  virtual std::optional<std::vector<int64_t>> input_dims(int i) const = 0;
  // The values of an input which is a constant of the model, in host memory and valid while the NodeInfo lives; else
  // null.
  virtual const Tensor* constant_input(int i) const = 0;

  virtual std::optional<int64_t> find_int(const char* attribute) const = 0;
  virtual std::optional<float> find_float(const char* attribute) const = 0;
  virtual std::optional<std::string> find_string(const char* attribute) const = 0;
  virtual std::optional<std::vector<int64_t>> find_ints(const char* attribute) const = 0;
  virtual std::optional<std::vector<float>> find_floats(const char* attribute) const = 0;
  virtual std::optional<std::vector<std::string>> find_strings(const char* attribute) const = 0;
  // Whether the node's kernel will be told lists of strings, too.
  virtual bool kernel_has_strings() const = 0;
  // A tensor attribute (ConstantOfShape's value); in host memory, valid while the NodeInfo lives.
  virtual const Tensor* find_tensor(const char* attribute) const = 0;
  // All that the node has, if its graph is what is read.
  virtual Attributes attributes() const { return {}; }

  int64_t get_int(const char* attribute, int64_t otherwise) const { return find_int(attribute).value_or(otherwise); }
  float get_float(const char* attribute, float otherwise) const { return find_float(attribute).value_or(otherwise); }
  std::string get_string(const char* attribute, const std::string& otherwise) const {
    return find_string(attribute).value_or(otherwise);
  }
  // Error{not_supported} if the list is another one than `otherwise`, and only the graph can tell it.
  std::vector<std::string> get_strings(const char* attribute, const std::vector<std::string>& otherwise) const;

  Settings settings;
};

// As errors name a node: "Conv node 'conv1'".
std::string label_of(std::string_view op_type, std::string_view name);
inline std::string label_of(const NodeInfo& node) { return label_of(node.op_type(), node.name()); }

// Blocks of scratch that may not lie in one place though one is given back before the other is taken, because a graph's
// branches work with both at a time.
class ApartBlocks {
 public:
  virtual int taken() const = 0;  // blocks so far, which are counted as they are taken
  virtual void keep_apart(int block, int from) = 0;

 protected:
  ~ApartBlocks() = default;
};

// One run of one node.
class Context {
 public:
  virtual ~Context() = default;
  virtual int input_count() const = 0;
  virtual int output_count() const = 0;
  // Null if the optional input is absent.
  virtual const Tensor* find_input(int i) = 0;
  // Where an input is, and its dimensions: what tells whether a graph fits, and is sooner to be had than a tensor.
  struct Outline {
    void* data;
    std::span<const int64_t> dims;
  };
  virtual std::optional<Outline> find_outline(int i) {
    const Tensor* const input = find_input(i);
    return input ? std::optional(Outline{input->data, input->shape.dims()}) : std::nullopt;
  }
  // Makes output `i`; an output that nobody wants has a null `data` if optional (see wants_output).
  virtual Tensor output(int i, const Shape& shape) = 0;
  // The same, of which only the address matters.
  virtual void* output_address(int i, const Shape& shape) { return output(i, shape).data; }
  // The same; it may be the memory of an input that has as many elements. What it holds then is as it was.
  virtual Tensor output_in_place(int i, const Shape& shape, int /*input*/) { return output(i, shape); }
  virtual bool wants_output(int i) const = 0;  // a node may not even have a slot for it
  virtual StreamRef stream() const = 0;
  // Device memory for this run's launches; aligned to 256 bytes. Null for zero bytes.
  virtual void* scratch(size_t bytes) = 0;
  // The same. If it is cleared, a graph that is captured clears it ahead, at each launch, for all that want that.
  struct Cleared {
    void* at;
    bool is_cleared;
  };
  virtual Cleared cleared_scratch(size_t bytes) { return {scratch(bytes), false}; }
  // What is launched from now on may overwrite what scratch() gave. What nobody gives back lasts until the run's end.
  virtual void give_back(void* /*scratch*/) {}
  virtual device::Blas& blas() = 0;
  virtual device::Dnn& dnn() = 0;
  virtual device::FaultRef fault() = 0;
  // Copies from the device into the host's memory and waits for it: for ops whose outputs' sizes depend on data, and
  // whose rows say so (OpRow::reads_back). Nothing that waits can be captured: Error{capture_forbidden}.
  virtual void read_back(void* host, const void* device, size_t bytes) = 0;
  // Runs with these shapes are to take the same scratch, in the same order, as this one is recorded or captured.
  virtual bool is_planned() const { return false; }
  // To be told of, if this run is recorded for one that is captured.
  virtual ApartBlocks* apart_blocks() { return nullptr; }

  const Tensor& input(int i);  // Error{invalid_input} if absent
};

// What an op keeps from one run to the next: launches on the stream are done before any run.
class Prepack {
 public:
  virtual ~Prepack() = default;
  virtual StreamRef stream() = 0;
  virtual device::Dnn& dnn() = 0;
  virtual void* keep(size_t bytes) = 0;  // device memory that lives as long as the op
  // The same, with what the constant holds. If that is the model's own memory, others that keep it have it in common.
  virtual void* keep_constant(const Tensor& constant, bool is_models) = 0;
  virtual void let_go(void* kept) = 0;  // what these gave is needed no more
  // For FaultRef, of whoever is to be named in the error.
  virtual int fault_number(const std::string& who) = 0;
};

// Scratch for the products of one run of one node.
class ScratchWorkspace final : public device::Workspace {
 public:
  explicit ScratchWorkspace(Context& context) : context_(context) {}
  void* at_least(size_t bytes) override {
    if (bytes > bytes_) block_ = context_.scratch(bytes_ = bytes);
    return block_;
  }

 private:
  Context& context_;
  void* block_ = nullptr;
  size_t bytes_ = 0;
};

// An operator bound to a node. The constructor reads attributes and throws Error{not_supported} for what it cannot do:
// the node is then declined with that reason. run() decides shapes and algorithm from its inputs first, makes outputs
// and scratch, and then launches and does nothing else, so that it can be captured; it may be called from many threads.
// Where outputs' sizes depend on data it launches, reads back what they are, makes outputs, and launches again.
class Op {
 public:
  virtual ~Op() = default;
  virtual void run(Context& context) const = 0;
  // How much cleared scratch a run may want.
  virtual size_t cleared_bytes() const { return 0; }
  // Called once and before any run, for what the op keeps on the device beside constants.
  virtual void prepare(Prepack& /*prepack*/) {}
  // Offers an input which is a constant of the model, once and before any run. If the op keeps what it needs of it, in
  // a form of its own, and says true, runs have that input no more.
  virtual bool prepack(int /*input*/, const Tensor& /*constant*/, Prepack& /*prepack*/) { return false; }
};

// Reads an int32 or int64 tensor in host memory (shapes, axes, pads).
std::vector<int64_t> host_ints(const Tensor& tensor, const char* what);

}  // namespace encore::ops
