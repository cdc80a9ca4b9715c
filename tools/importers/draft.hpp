#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/importers/import.hpp"

namespace ho::importers {

/// Makes a name that is safe everywhere: replaces control characters and invalid UTF-8 by '?', and
/// cuts the name at 200 bytes.
[[nodiscard]] std::string clean_name(std::string_view name);

/// Stands for no storage and no op.
inline constexpr std::uint32_t kNone = UINT32_MAX;

/// An op of the draft. Its lists may name a storage more than once.
struct DraftOp {
  std::string name;
  std::string phase;
  std::optional<double> duration_ns;  ///< nullopt: derived by the roofline
  double flops = 0;
  double bytes = 0;                  ///< moved bytes; 0: the sizes of all operands
  std::vector<std::uint32_t> reads;  ///< numbers from Draft::add_storage()
  std::vector<std::uint32_t> writes;
  std::vector<std::uint32_t> after;  ///< numbers from Draft::add_op(), all smaller
  bool fixed = false;
  bool recomputable = false;
  bool communication = false;
  std::string group;         ///< that runs this collective, which is fixed; empty: not one
  double network_bytes = 0;  ///< bytes of communication; 0: the larger of what it reads and writes
};

/// Collects a step while an importer reads its format, then turns it into a checked graph. A value.
class Draft {
 public:
  /// @param storage  finish() sets its id
  std::uint32_t add_storage(Storage storage);
  [[nodiscard]] Storage& storage(std::uint32_t number) { return storages_.at(number); }
  [[nodiscard]] std::size_t storage_count() const { return storages_.size(); }

  std::uint32_t add_op(DraftOp op);
  [[nodiscard]] const std::vector<DraftOp>& ops() const { return ops_; }
  [[nodiscard]] DraftOp& op(std::uint32_t number) { return ops_.at(number); }
  /// Removes an op. Ops that have it in `after` get its own `after` instead.
  void drop_op(std::uint32_t number);

  void remark(std::string sentence) { notes_.remarks.push_back(std::move(sentence)); }

  /// Derives missing durations, removes empty ops and unused storages, numbers the rest in order,
  /// and checks the graph. If a storage begins in the step and an op reads it before any op writes
  /// it, the value is undefined; that read becomes a write.
  /// @return errors of check_graph(); kInvalidArgument for a duration that is not a number >= 0.
  [[nodiscard]] Result<Imported> finish(std::string_view name, const Rates& rates) &&;

 private:
  [[nodiscard]] Result<std::uint64_t> duration_of(const DraftOp& op);
  void resolve_operands(const DraftOp& in, const std::vector<std::uint32_t>& index_of, Op& out);
  void resolve_after(const DraftOp& in, const std::vector<std::uint32_t>& op_index, Op& out);

  std::vector<Storage> storages_;
  std::vector<DraftOp> ops_;
  std::vector<char> dropped_;
  std::vector<char> written_;
  std::vector<std::uint64_t> last_list_;
  std::uint64_t list_number_ = 0;
  Notes notes_;
};

}  // namespace ho::importers
