#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "common/base/check.hpp"
#include "common/base/error.hpp"

namespace ho {

/// A value, or the Error that replaces it. Converts from both, so `return error;` and `return
/// value;` both work. Aborts if the caller reads the side that is not present.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  [[nodiscard]] T& value() & {
    HO_CHECK(ok());
    return std::get<0>(state_);
  }
  [[nodiscard]] const T& value() const& {
    HO_CHECK(ok());
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value() && {
    HO_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const {
    HO_CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

/// Success without a value, or an Error. `return {};` means success.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const {
    HO_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace ho
