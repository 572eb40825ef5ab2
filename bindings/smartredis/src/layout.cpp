// Tensors in private memory, and copies between the memory layouts of callers.
#include "layout.h"
#include <cstdint>
#include <cstring>
#include <new>

namespace SmartRedis {

namespace {
using Block = std::unique_ptr<std::max_align_t[]>;

Block block(size_t bytes) {
    const size_t units = bytes / sizeof(std::max_align_t) + 1;
    try {
        // Without the parentheses that would set the memory to zero.
        return Block(new std::max_align_t[units]);
    } catch (const std::bad_alloc&) {
        throw SRBadAllocException("no memory for " + std::to_string(bytes) + " bytes");
    }
}

struct Type {
    SRTensorType type;
    tensorlend_dtype dtype;
    size_t bytes;
    const char* name;
};

constexpr Type TYPES[] = {
    {SRTensorTypeDouble, TENSORLEND_F64, 8, "double"}, {SRTensorTypeFloat, TENSORLEND_F32, 4, "float"},
    {SRTensorTypeInt8, TENSORLEND_I8, 1, "int8"},      {SRTensorTypeInt16, TENSORLEND_I16, 2, "int16"},
    {SRTensorTypeInt32, TENSORLEND_I32, 4, "int32"},   {SRTensorTypeInt64, TENSORLEND_I64, 8, "int64"},
    {SRTensorTypeUint8, TENSORLEND_U8, 1, "uint8"},    {SRTensorTypeUint16, TENSORLEND_U16, 2, "uint16"},
};

const Type* find(SRTensorType type) {
    for (const Type& each : TYPES)
        if (each.type == type)
            return &each;
    return nullptr;
}

/// Copies a column-major tensor to row-major memory, or back: `row` walks through one memory in order.
template <typename Element, bool TO_ROW> void reorder(Element* row, Element* column, const Dims& dims) {
    const size_t last = dims.size() - 1, inner = dims[last];
    size_t step = 1; // of the last dimension in column-major memory
    for (size_t at = 0; at < last; at++)
        step *= dims[at];
    Dims index(dims.size(), 0);
    for (size_t lines = step; lines > 0; lines--) {
        size_t start = 0, stride = 1;
        for (size_t at = 0; at < last; at++) {
            start += index[at] * stride;
            stride *= dims[at];
        }
        Element* at = column + start;
        for (size_t i = 0; i < inner; i++, at += step) {
            if (TO_ROW)
                *row++ = *at;
            else
                *at = *row++;
        }
        for (size_t at_dim = last; at_dim-- > 0 && ++index[at_dim] == dims[at_dim];)
            index[at_dim] = 0;
    }
}

template <bool TO_ROW> void reorder_bytes(void* row, void* column, const Dims& dims, size_t element) {
    if (dims.size() < 2) {
        std::memcpy(TO_ROW ? row : column, TO_ROW ? column : row, elements(dims) * element);
        return;
    }
    switch (element) {
    case 1:
        return reorder<uint8_t, TO_ROW>(static_cast<uint8_t*>(row), static_cast<uint8_t*>(column), dims);
    case 2:
        return reorder<uint16_t, TO_ROW>(static_cast<uint16_t*>(row), static_cast<uint16_t*>(column), dims);
    case 4:
        return reorder<uint32_t, TO_ROW>(static_cast<uint32_t*>(row), static_cast<uint32_t*>(column), dims);
    default:
        return reorder<uint64_t, TO_ROW>(static_cast<uint64_t*>(row), static_cast<uint64_t*>(column), dims);
    }
}

/// Copies between row-major memory and arrays of pointers. Returns the end of the copied range.
template <bool TO_ROW> unsigned char* nested(unsigned char* row, void* pointers, const Dims& dims, size_t at, size_t element) {
    if (at + 1 == dims.size()) {
        const size_t bytes = dims[at] * element;
        std::memcpy(TO_ROW ? row : pointers, TO_ROW ? pointers : row, bytes);
        return row + bytes;
    }
    for (size_t i = 0; i < dims[at]; i++)
        row = nested<TO_ROW>(row, static_cast<void**>(pointers)[i], dims, at + 1, element);
    return row;
}

/// Builds the arrays of pointers for elements that are already in place.
void* pointers(Arena& arena, unsigned char*& row, const Dims& dims, size_t at, size_t element) {
    if (at + 1 == dims.size())
        return std::exchange(row, row + dims[at] * element);
    void** each = static_cast<void**>(arena.allocate(dims[at] * sizeof(void*)));
    for (size_t i = 0; i < dims[at]; i++)
        each[i] = pointers(arena, row, dims, at + 1, element);
    return each;
}
} // namespace

void* Arena::allocate(size_t bytes) {
    blocks_.push_back(block(bytes));
    return blocks_.back().get();
}

size_t* Arena::copy(const Dims& dims) {
    size_t* copied = static_cast<size_t*>(allocate(dims.size() * sizeof(size_t)));
    std::copy(dims.begin(), dims.end(), copied);
    return copied;
}

Tensor::Tensor(SRTensorType type, Dims dims) : type_(type), dims_(std::move(dims)), data_(block(bytes())) {}

Tensor::Tensor(const Tensor& other) : Tensor(other.type_, other.dims_) { std::memcpy(data(), other.data(), bytes()); }

Tensor& Tensor::operator=(Tensor other) {
    std::swap(type_, other.type_);
    std::swap(dims_, other.dims_);
    std::swap(data_, other.data_);
    return *this;
}

size_t Tensor::bytes() const { return elements(dims_) * element_bytes(type_); }

size_t element_bytes(SRTensorType type) {
    const Type* found = find(type);
    return found == nullptr ? 0 : found->bytes;
}

tensorlend_dtype dtype_of(SRTensorType type) {
    const Type* found = find(type);
    return found == nullptr ? 0 : found->dtype;
}

SRTensorType type_of(tensorlend_dtype dtype) {
    for (const Type& each : TYPES)
        if (each.dtype == dtype)
            return each.type;
    return SRTensorTypeInvalid;
}

const char* type_name(SRTensorType type) {
    const Type* found = find(type);
    return found == nullptr ? "invalid" : found->name;
}

size_t elements(const Dims& dims) {
    size_t product = 1;
    for (const size_t size : dims)
        product *= size;
    return product;
}

void check_layout(SRMemoryLayout layout) {
    if (layout != SRMemLayoutContiguous && layout != SRMemLayoutNested && layout != SRMemLayoutFortranContiguous)
        throw SRRuntimeException("memory layout " + std::to_string(int(layout)) +
                                 " is not supported: give nested, contiguous or Fortran contiguous");
}

void check_name(const std::string& name) {
    if (name.find('\0') != std::string::npos)
        throw SRRuntimeException("a name has a zero byte: \"" + std::string(name.c_str()) + "...\"");
}

void check_tensor(const std::string& name, const void* data, const Dims& dims, SRMemoryLayout layout) {
    check_name(name);
    if (data == nullptr)
        throw SRRuntimeException("the data of tensor \"" + name + "\" is NULL");
    if (name.empty() || name == ".meta" || name == ".fields")
        throw SRRuntimeException("\"" + name + "\" cannot be the name of a tensor");
    if (dims.empty())
        throw SRRuntimeException("tensor \"" + name + "\" has no dimensions");
    size_t bytes = 8;
    for (const size_t size : dims) {
        if (size == 0)
            throw SRRuntimeException("tensor \"" + name + "\" has a dimension of 0");
        if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > PTRDIFF_MAX)
            throw SRBadAllocException("tensor \"" + name + "\" has more bytes than this machine can address");
    }
    check_layout(layout);
}

void to_row_major(void* to, const void* from, const Dims& dims, size_t element, SRMemoryLayout layout) {
    if (layout == SRMemLayoutFortranContiguous)
        reorder_bytes<true>(to, const_cast<void*>(from), dims, element);
    else if (layout == SRMemLayoutNested && !dims.empty())
        nested<true>(static_cast<unsigned char*>(to), const_cast<void*>(from), dims, 0, element);
    else
        std::memcpy(to, from, elements(dims) * element);
}

void from_row_major(void* to, const void* from, const Dims& dims, size_t element, SRMemoryLayout layout) {
    if (layout == SRMemLayoutFortranContiguous)
        reorder_bytes<false>(const_cast<void*>(from), to, dims, element);
    else if (layout == SRMemLayoutNested && !dims.empty())
        nested<false>(static_cast<unsigned char*>(const_cast<void*>(from)), to, dims, 0, element);
    else
        std::memcpy(to, from, elements(dims) * element);
}

void* in_layout(Arena& arena, const Tensor& tensor, SRMemoryLayout layout) {
    check_layout(layout);
    void* data = arena.allocate(tensor.bytes());
    const size_t element = element_bytes(tensor.type());
    if (layout == SRMemLayoutFortranContiguous) {
        from_row_major(data, tensor.data(), tensor.dims(), element, layout);
        return data;
    }
    std::memcpy(data, tensor.data(), tensor.bytes());
    unsigned char* row = static_cast<unsigned char*>(data);
    return layout == SRMemLayoutNested && !tensor.dims().empty() ? pointers(arena, row, tensor.dims(), 0, element) : data;
}

std::vector<int64_t> column_strides(const Dims& dims) {
    std::vector<int64_t> strides;
    int64_t step = 1;
    for (const size_t size : dims) {
        strides.push_back(step);
        step *= int64_t(size);
    }
    return strides;
}

Draft create_draft(const tensorlend_client* session, SRTensorType type, const Dims& dims, SRMemoryLayout layout,
                   const std::string& what) {
    const std::vector<uint64_t> shape(dims.begin(), dims.end());
    const uint32_t ndim = uint32_t(dims.size());
    Draft draft;
    if (layout == SRMemLayoutFortranContiguous && ndim > 1)
        check(tensorlend_create_strided(session, dtype_of(type), ndim, shape.data(), column_strides(dims).data(), 0, draft.place()),
              what);
    else
        check(tensorlend_create(session, dtype_of(type), ndim, shape.data(), draft.place()), what);
    return draft;
}

void copy_elements(void* to, const tensorlend_lease* lease, const tensorlend_tensor& tensor, const char* member,
                   const std::string& what) {
    if (tensor.row_major && tensor.data != nullptr)
        std::memcpy(to, tensor.data, tensor.nbytes);
    else
        check(tensorlend_lease_copy(lease, member, to, tensor.nbytes), what);
}

Tensor copied(const tensorlend_lease* lease, const tensorlend_tensor& tensor, const char* member, const std::string& what) {
    const SRTensorType type = type_of(tensor.dtype);
    if (type == SRTensorTypeInvalid)
        throw SRTypeException(what + " has elements of type " + tensorlend_dtype_name(tensor.dtype) +
                              ", which SmartRedis does not have: publish another type");
    Tensor copy(type, Dims(tensor.shape, tensor.shape + tensor.ndim));
    copy_elements(copy.data(), lease, tensor, member, what);
    return copy;
}

} // namespace SmartRedis
