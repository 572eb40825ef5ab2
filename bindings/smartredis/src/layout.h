// Tensors in private memory, and copies between the memory layouts of callers.
#ifndef SMARTREDIS_LAYOUT_H
#define SMARTREDIS_LAYOUT_H
#include "handles.h"
#include "sr_enums.h"
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace SmartRedis {

using Dims = std::vector<size_t>;

/// Memory that calls return by pointers. It is freed with its owner, a client or a dataset.
class Arena {
    std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;

public:
    /// At least one byte, uninitialized, aligned for every element type.
    void* allocate(size_t bytes);
    size_t* copy(const Dims& dims);
};

/// The elements of a tensor in row-major order, in private memory.
class Tensor {
    SRTensorType type_;
    Dims dims_;
    std::unique_ptr<std::max_align_t[]> data_;

public:
    /// Uninitialized elements. BadAllocException if there is no memory.
    Tensor(SRTensorType type, Dims dims);
    Tensor(const Tensor& other);
    Tensor(Tensor&&) = default;
    Tensor& operator=(Tensor other);
    SRTensorType type() const { return type_; }
    const Dims& dims() const { return dims_; }
    void* data() { return data_.get(); }
    const void* data() const { return data_.get(); }
    size_t bytes() const;
};

/// Bytes of an element; 0 for a type that SmartRedis does not have.
size_t element_bytes(SRTensorType type);
/// The element type of tensorlend; 0 for a type that SmartRedis does not have.
tensorlend_dtype dtype_of(SRTensorType type);
/// SRTensorTypeInvalid for an element type that SmartRedis does not have.
SRTensorType type_of(tensorlend_dtype dtype);
const char* type_name(SRTensorType type);
/// Product of the dimensions.
size_t elements(const Dims& dims);

/// RuntimeException if the name has a zero byte, at which the C library would cut it off.
void check_name(const std::string& name);
/// RuntimeException if `name`, `data` or `dims` cannot be a tensor, or the layout is none of the three that calls accept.
void check_tensor(const std::string& name, const void* data, const Dims& dims, SRMemoryLayout layout);
void check_layout(SRMemoryLayout layout);

/// Copies a caller's elements, in the caller's layout, to row-major memory.
void to_row_major(void* to, const void* from, const Dims& dims, size_t element, SRMemoryLayout layout);
/// Copies row-major elements to a caller's memory, in the caller's layout.
void from_row_major(void* to, const void* from, const Dims& dims, size_t element, SRMemoryLayout layout);
/// Returns memory of `arena` with a tensor in this layout: for the nested layout, pointers and elements.
void* in_layout(Arena& arena, const Tensor& tensor, SRMemoryLayout layout);
/// Strides in elements of a column-major tensor.
std::vector<int64_t> column_strides(const Dims& dims);

/// Creates a draft of this shape: column-major for the Fortran layout, otherwise row-major.
Draft create_draft(const tensorlend_client* session, SRTensorType type, const Dims& dims, SRMemoryLayout layout,
                   const std::string& what);
/// Copies a leased tensor's elements, in row-major order, to memory of its size.
void copy_elements(void* to, const tensorlend_lease* lease, const tensorlend_tensor& tensor, const char* member,
                   const std::string& what);
/// Copies a leased tensor, in row-major order. `member` is NULL, or the name of a tensor of a leased dataset.
Tensor copied(const tensorlend_lease* lease, const tensorlend_tensor& tensor, const char* member, const std::string& what);

} // namespace SmartRedis
#endif
