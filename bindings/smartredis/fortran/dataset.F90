! Datasets: tensors and metadata fields under one name.
module smartredis_dataset
use iso_c_binding, only : c_ptr, c_null_ptr, c_char, c_size_t, c_loc, c_f_pointer, c_associated
use iso_c_binding, only : c_int8_t, c_int16_t, c_int32_t, c_int64_t, c_float, c_double
use, intrinsic :: iso_fortran_env, only : error_unit
use fortran_c_interop, only : enum_kind, trimmed, string_of, holds, c_refuse_small_array
use smartredis_c_dataset
implicit none; private

#include "enum_fortran.inc"

public :: enum_kind

! A dataset in this process's memory. It ends with its variable: do not copy it by an assignment.
type, public :: dataset_type
  type(c_ptr) :: dataset_ptr = c_null_ptr
contains
  procedure :: initialize => initialize_dataset
  final :: final_destructor
  procedure :: destructor
  procedure :: get_c_pointer
  generic :: add_tensor => add_tensor_i8, add_tensor_i16, add_tensor_i32, add_tensor_i64, add_tensor_float, add_tensor_double
  generic :: unpack_dataset_tensor => unpack_dataset_tensor_i8, unpack_dataset_tensor_i16, unpack_dataset_tensor_i32, &
    unpack_dataset_tensor_i64, unpack_dataset_tensor_float, unpack_dataset_tensor_double
  generic :: add_meta_scalar => add_meta_scalar_i32, add_meta_scalar_i64, add_meta_scalar_float, add_meta_scalar_double
  generic :: get_meta_scalars => get_meta_scalars_i32, get_meta_scalars_i64, get_meta_scalars_float, get_meta_scalars_double
  procedure :: add_meta_string
  procedure :: get_metadata_field_type
  procedure :: get_tensor_type
  procedure :: get_tensor_dims
  procedure :: to_string
  procedure :: print_dataset
  procedure, private :: add_tensor_i8, add_tensor_i16, add_tensor_i32, &
    add_tensor_i64, add_tensor_float, add_tensor_double
  procedure, private :: unpack_dataset_tensor_i8, unpack_dataset_tensor_i16, unpack_dataset_tensor_i32, &
    unpack_dataset_tensor_i64, unpack_dataset_tensor_float, unpack_dataset_tensor_double
  procedure, private :: add_meta_scalar_i32, add_meta_scalar_i64, add_meta_scalar_float, &
    add_meta_scalar_double
  procedure, private :: get_meta_scalars_i32, get_meta_scalars_i64, get_meta_scalars_float, &
    get_meta_scalars_double
end type dataset_type

contains

function initialize_dataset(self, name) result(code)
  class(dataset_type), intent(inout) :: self
  character(len=*), intent(in) :: name
  integer(kind=enum_kind) :: code
  code = c_CDataSet(name, trimmed(name), self%dataset_ptr)
end function initialize_dataset

subroutine final_destructor(self)
  type(dataset_type), intent(inout) :: self
  integer(kind=enum_kind) :: code
  if (c_associated(self%dataset_ptr)) code = c_DeallocateDataSet(self%dataset_ptr)
end subroutine final_destructor

function destructor(self) result(code)
  class(dataset_type), intent(inout) :: self
  integer(kind=enum_kind) :: code
  code = SRNoError
  if (c_associated(self%dataset_ptr)) code = c_DeallocateDataSet(self%dataset_ptr)
end function destructor

function get_c_pointer(self)
  class(dataset_type), intent(in) :: self
  type(c_ptr) :: get_c_pointer
  get_c_pointer = self%dataset_ptr
end function get_c_pointer

#define SELF_TYPE dataset_type
#define SELF_POINTER dataset_ptr
#define C_PUT c_add_tensor
#define C_UNPACK c_unpack_dataset_tensor
#define PUT add_tensor_i8
#define UNPACK unpack_dataset_tensor_i8
#define ELEMENT integer(kind=c_int8_t)
#define TENSOR tensor_int8
#include "tensor_calls.inc"

#define PUT add_tensor_i16
#define UNPACK unpack_dataset_tensor_i16
#define ELEMENT integer(kind=c_int16_t)
#define TENSOR tensor_int16
#include "tensor_calls.inc"

#define PUT add_tensor_i32
#define UNPACK unpack_dataset_tensor_i32
#define ELEMENT integer(kind=c_int32_t)
#define TENSOR tensor_int32
#include "tensor_calls.inc"

#define PUT add_tensor_i64
#define UNPACK unpack_dataset_tensor_i64
#define ELEMENT integer(kind=c_int64_t)
#define TENSOR tensor_int64
#include "tensor_calls.inc"

#define PUT add_tensor_float
#define UNPACK unpack_dataset_tensor_float
#define ELEMENT real(kind=c_float)
#define TENSOR tensor_flt
#include "tensor_calls.inc"

#define PUT add_tensor_double
#define UNPACK unpack_dataset_tensor_double
#define ELEMENT real(kind=c_double)
#define TENSOR tensor_dbl
#include "tensor_calls.inc"

#define ADD add_meta_scalar_i32
#define GET get_meta_scalars_i32
#define ELEMENT integer(kind=c_int32_t)
#define META_TYPE meta_int32
#include "meta_calls.inc"

#define ADD add_meta_scalar_i64
#define GET get_meta_scalars_i64
#define ELEMENT integer(kind=c_int64_t)
#define META_TYPE meta_int64
#include "meta_calls.inc"

#define ADD add_meta_scalar_float
#define GET get_meta_scalars_float
#define ELEMENT real(kind=c_float)
#define META_TYPE meta_flt
#include "meta_calls.inc"

#define ADD add_meta_scalar_double
#define GET get_meta_scalars_double
#define ELEMENT real(kind=c_double)
#define META_TYPE meta_dbl
#include "meta_calls.inc"

function add_meta_string(self, name, meta) result(code)
  class(dataset_type), intent(in) :: self
  character(len=*), intent(in) :: name
  character(len=*), intent(in) :: meta
  integer(kind=enum_kind) :: code
  code = c_add_meta_string(self%dataset_ptr, name, trimmed(name), meta, trimmed(meta))
end function add_meta_string

function get_metadata_field_type(self, name, mdtype) result(code)
  class(dataset_type), intent(in) :: self
  character(len=*), intent(in) :: name
  integer(kind=enum_kind), intent(out) :: mdtype
  integer(kind=enum_kind) :: code
  mdtype = meta_invalid
  code = c_get_metadata_field_type(self%dataset_ptr, name, trimmed(name), mdtype)
end function get_metadata_field_type

function get_tensor_type(self, name, ttype) result(code)
  class(dataset_type), intent(in) :: self
  character(len=*), intent(in) :: name
  integer(kind=enum_kind), intent(out) :: ttype
  integer(kind=enum_kind) :: code
  ttype = tensor_invalid
  code = c_get_tensor_type(self%dataset_ptr, name, trimmed(name), ttype)
end function get_tensor_type

! Writes a tensor's shape to `dims`, and its number of dimensions to `dims_length`, which is the room in `dims` before.
function get_tensor_dims(self, name, dims, dims_length) result(code)
  class(dataset_type), intent(in) :: self
  character(len=*), intent(in) :: name
  integer, dimension(:), target, intent(inout) :: dims
  integer, intent(inout) :: dims_length
  integer(kind=enum_kind) :: code
  integer(kind=c_size_t), target :: sizes(size(dims))
  integer(kind=c_size_t) :: length
  type(c_ptr) :: place
  place = c_loc(sizes)
  length = min(dims_length, size(dims))
  code = c_get_tensor_dims(self%dataset_ptr, name, trimmed(name), place, length)
  dims_length = int(length)
  if (code == SRNoError) dims(:dims_length) = int(sizes(:dims_length))
end function get_tensor_dims

function to_string(self)
  class(dataset_type), intent(in) :: self
  character(kind=c_char, len=:), allocatable :: to_string
  to_string = string_of(c_dataset_to_string(self%dataset_ptr))
end function to_string

! Writes a description to a unit: standard error by default.
subroutine print_dataset(self, unit)
  class(dataset_type), intent(in) :: self
  integer, optional, intent(in) :: unit
  integer :: target_unit
  target_unit = error_unit
  if (present(unit)) target_unit = unit
  write(target_unit, *) self%to_string()
end subroutine print_dataset

end module smartredis_dataset
