! The client: tensors, datasets, aggregation lists and models.
module smartredis_client
use iso_c_binding, only : c_ptr, c_null_ptr, c_bool, c_char, c_int, c_size_t, c_loc, c_f_pointer
use iso_c_binding, only : c_int8_t, c_int16_t, c_int32_t, c_int64_t, c_float, c_double
use, intrinsic :: iso_fortran_env, only : error_unit
use fortran_c_interop, only : enum_kind, c_names, set_names, trimmed, string_of, holds, c_refuse_small_array
use smartredis_c_client
use smartredis_c_models
use smartredis_configoptions, only : configoptions_type
use smartredis_dataset, only : dataset_type
implicit none; private

#include "enum_fortran.inc"

public :: enum_kind

! A tensor in shared memory that the program writes: c_f_pointer(draft%data, array, shape). Not in SmartRedis.
type, public :: draft_type
  type(c_ptr) :: data = c_null_ptr
  type(c_ptr), private :: draft_ptr = c_null_ptr
contains
  procedure :: destructor => draft_destructor
end type draft_type

! A tensor in shared memory that the program reads, and must not write, until `destructor`. Not in SmartRedis.
type, public :: lease_type
  type(c_ptr) :: data = c_null_ptr
  integer, allocatable :: dims(:)
  ! One of tensor_dbl and so on; c_fortran_contiguous, or c_contiguous if the producer wrote the tensor row-major.
  integer(kind=enum_kind) :: ttype = tensor_invalid
  integer(kind=enum_kind) :: layout = c_invalid
  type(c_ptr), private :: lease_ptr = c_null_ptr
contains
  procedure :: destructor => lease_destructor
end type lease_type

! A client of a tensorlend daemon. Each call returns SRNoError or an error's code.
type, public :: client_type
  private
  type(c_ptr) :: client_ptr = c_null_ptr
  logical :: is_initialized = .false.
contains
  generic :: initialize => initialize_client_deprecated, initialize_client_simple, initialize_client_cfgopts
  generic :: put_tensor => put_tensor_i8, put_tensor_i16, put_tensor_i32, put_tensor_i64, put_tensor_float, put_tensor_double
  generic :: unpack_tensor => unpack_tensor_i8, unpack_tensor_i16, unpack_tensor_i32, &
    unpack_tensor_i64, unpack_tensor_float, unpack_tensor_double
  procedure :: SR_error_parser
  procedure :: isinitialized
  procedure :: destructor
  procedure :: get_c_pointer
  procedure :: model_exists
  procedure :: tensor_exists
  procedure :: dataset_exists
  procedure :: key_exists
  procedure :: poll_model
  procedure :: poll_tensor
  procedure :: poll_dataset
  procedure :: poll_key
  procedure :: rename_tensor
  procedure :: delete_tensor
  procedure :: copy_tensor
  procedure :: set_model_from_file
  procedure :: set_model_from_file_multigpu
  procedure :: set_model
  procedure :: set_model_multigpu
  procedure :: get_model
  procedure :: set_script_from_file
  procedure :: set_script_from_file_multigpu
  procedure :: set_script
  procedure :: set_script_multigpu
  procedure :: get_script
  procedure :: run_script
  procedure :: run_script_multigpu
  procedure :: run_model
  procedure :: run_model_multigpu
  procedure :: delete_script
  procedure :: delete_script_multigpu
  procedure :: delete_model
  procedure :: delete_model_multigpu
  procedure :: put_dataset
  procedure :: get_dataset
  procedure :: rename_dataset
  procedure :: copy_dataset
  procedure :: delete_dataset
  procedure :: use_tensor_ensemble_prefix
  procedure :: use_dataset_ensemble_prefix
  procedure :: use_model_ensemble_prefix
  procedure :: use_list_ensemble_prefix
  procedure :: set_data_source
  procedure :: append_to_list
  procedure :: delete_list
  procedure :: copy_list
  procedure :: rename_list
  procedure :: get_list_length
  procedure :: poll_list_length
  procedure :: poll_list_length_gte
  procedure :: poll_list_length_lte
  procedure :: get_datasets_from_list
  procedure :: get_datasets_from_list_range
  procedure :: to_string
  procedure :: print_client
  procedure :: draft_tensor
  procedure :: put_draft
  procedure :: lease_tensor
  procedure, private :: initialize_client_deprecated, initialize_client_simple, initialize_client_cfgopts
  procedure, private :: put_tensor_i8, put_tensor_i16, put_tensor_i32, &
    put_tensor_i64, put_tensor_float, put_tensor_double
  procedure, private :: unpack_tensor_i8, unpack_tensor_i16, unpack_tensor_i32, &
    unpack_tensor_i64, unpack_tensor_float, unpack_tensor_double
end type client_type

contains

! Returns whether the code is an error, and writes the code's meaning to standard error.
function SR_error_parser(self, response_code) result(is_error)
  class(client_type), intent(in) :: self
  integer(kind=enum_kind), intent(in) :: response_code
  logical :: is_error
  is_error = .true.
  if (.not. self%is_initialized) then
    write(error_unit, *) "the SmartRedis client is not initialized"
    return
  end if
  select case (response_code)
  case (SRNoError)
    is_error = .false.
  case (SRBadAllocError)
    write(error_unit, *) "memory is exhausted"
  case (SRDatabaseError)
    write(error_unit, *) "the daemon does not respond"
  case (SRInternalError)
    write(error_unit, *) "internal error"
  case (SRRuntimeError)
    write(error_unit, *) "the call failed"
  case (SRParameterError)
    write(error_unit, *) "invalid argument"
  case (SRTimeoutError)
    write(error_unit, *) "timed out"
  case (SRKeyError)
    write(error_unit, *) "there is no such key"
  case (SRTypeError)
    write(error_unit, *) "wrong type"
  case default
    write(error_unit, *) "unknown error code"
  end select
end function SR_error_parser

function initialize_client_simple(self, logger_name) result(code)
  class(client_type), intent(inout) :: self
  character(len=*), optional, intent(in) :: logger_name
  integer(kind=enum_kind) :: code
  character(len=:), allocatable :: name
  name = "default"
  if (present(logger_name)) name = trim(logger_name)
  code = c_SimpleCreateClient(name, trimmed(name), self%client_ptr)
  self%is_initialized = code == SRNoError
end function initialize_client_simple

function initialize_client_cfgopts(self, cfgopts, logger_name) result(code)
  class(client_type), intent(inout) :: self
  type(configoptions_type), intent(in) :: cfgopts
  character(len=*), optional, intent(in) :: logger_name
  integer(kind=enum_kind) :: code
  character(len=:), allocatable :: name
  name = "default"
  if (present(logger_name)) name = trim(logger_name)
  code = c_CreateClient(cfgopts%get_c_pointer(), name, trimmed(name), self%client_ptr)
  self%is_initialized = code == SRNoError
end function initialize_client_cfgopts

function initialize_client_deprecated(self, cluster, logger_name) result(code)
  class(client_type), intent(inout) :: self
  logical, intent(in) :: cluster
  character(len=*), optional, intent(in) :: logger_name
  integer(kind=enum_kind) :: code
  character(len=:), allocatable :: name
  name = "default"
  if (present(logger_name)) name = trim(logger_name)
  code = c_SmartRedisCClient(logical(cluster, c_bool), name, trimmed(name), self%client_ptr)
  self%is_initialized = code == SRNoError
end function initialize_client_deprecated

logical function isinitialized(this)
  class(client_type) :: this
  isinitialized = this%is_initialized
end function isinitialized

function destructor(self) result(code)
  class(client_type), intent(inout) :: self
  integer(kind=enum_kind) :: code
  code = c_DeleteCClient(self%client_ptr)
  self%client_ptr = c_null_ptr
  self%is_initialized = .false.
end function destructor

function get_c_pointer(self)
  class(client_type), intent(in) :: self
  type(c_ptr) :: get_c_pointer
  get_c_pointer = self%client_ptr
end function get_c_pointer

#define EXISTS model_exists
#define POLL poll_model
#define NAME model_name
#define C_EXISTS c_model_exists
#define C_POLL c_poll_model
#include "exists_calls.inc"

#define EXISTS tensor_exists
#define POLL poll_tensor
#define NAME tensor_name
#define C_EXISTS c_tensor_exists
#define C_POLL c_poll_tensor
#include "exists_calls.inc"

#define EXISTS dataset_exists
#define POLL poll_dataset
#define NAME dataset_name
#define C_EXISTS c_dataset_exists
#define C_POLL c_poll_dataset
#include "exists_calls.inc"

#define EXISTS key_exists
#define POLL poll_key
#define NAME key
#define C_EXISTS c_key_exists
#define C_POLL c_poll_key
#include "exists_calls.inc"

#define SELF_TYPE client_type
#define SELF_POINTER client_ptr
#define C_PUT c_put_tensor
#define C_UNPACK c_unpack_tensor
#define PUT put_tensor_i8
#define UNPACK unpack_tensor_i8
#define ELEMENT integer(kind=c_int8_t)
#define TENSOR tensor_int8
#include "tensor_calls.inc"

#define PUT put_tensor_i16
#define UNPACK unpack_tensor_i16
#define ELEMENT integer(kind=c_int16_t)
#define TENSOR tensor_int16
#include "tensor_calls.inc"

#define PUT put_tensor_i32
#define UNPACK unpack_tensor_i32
#define ELEMENT integer(kind=c_int32_t)
#define TENSOR tensor_int32
#include "tensor_calls.inc"

#define PUT put_tensor_i64
#define UNPACK unpack_tensor_i64
#define ELEMENT integer(kind=c_int64_t)
#define TENSOR tensor_int64
#include "tensor_calls.inc"

#define PUT put_tensor_float
#define UNPACK unpack_tensor_float
#define ELEMENT real(kind=c_float)
#define TENSOR tensor_flt
#include "tensor_calls.inc"

#define PUT put_tensor_double
#define UNPACK unpack_tensor_double
#define ELEMENT real(kind=c_double)
#define TENSOR tensor_dbl
#include "tensor_calls.inc"

function rename_tensor(self, old_name, new_name) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: old_name, new_name
  integer(kind=enum_kind) :: code
  code = c_rename_tensor(self%client_ptr, old_name, trimmed(old_name), new_name, trimmed(new_name))
end function rename_tensor

function delete_tensor(self, name) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name
  integer(kind=enum_kind) :: code
  code = c_delete_tensor(self%client_ptr, name, trimmed(name))
end function delete_tensor

function copy_tensor(self, src_name, dest_name) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: src_name, dest_name
  integer(kind=enum_kind) :: code
  code = c_copy_tensor(self%client_ptr, src_name, trimmed(src_name), dest_name, trimmed(dest_name))
end function copy_tensor

function put_dataset(self, dataset) result(code)
  class(client_type), intent(in) :: self
  type(dataset_type), intent(in) :: dataset
  integer(kind=enum_kind) :: code
  code = c_put_dataset(self%client_ptr, dataset%get_c_pointer())
end function put_dataset

function get_dataset(self, name, dataset) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name
  type(dataset_type), intent(out) :: dataset
  integer(kind=enum_kind) :: code
  code = c_get_dataset(self%client_ptr, name, trimmed(name), dataset%dataset_ptr)
end function get_dataset

function rename_dataset(self, name, new_name) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name, new_name
  integer(kind=enum_kind) :: code
  code = c_rename_dataset(self%client_ptr, name, trimmed(name), new_name, trimmed(new_name))
end function rename_dataset

function copy_dataset(self, name, new_name) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name, new_name
  integer(kind=enum_kind) :: code
  code = c_copy_dataset(self%client_ptr, name, trimmed(name), new_name, trimmed(new_name))
end function copy_dataset

function delete_dataset(self, name) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name
  integer(kind=enum_kind) :: code
  code = c_delete_dataset(self%client_ptr, name, trimmed(name))
end function delete_dataset

function set_data_source(self, source_id) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: source_id
  integer(kind=enum_kind) :: code
  code = c_set_data_source(self%client_ptr, source_id, trimmed(source_id))
end function set_data_source

function use_model_ensemble_prefix(self, use_prefix) result(code)
  class(client_type), intent(in) :: self
  logical, intent(in) :: use_prefix
  integer(kind=enum_kind) :: code
  code = c_use_model_ensemble_prefix(self%client_ptr, logical(use_prefix, c_bool))
end function use_model_ensemble_prefix

function use_tensor_ensemble_prefix(self, use_prefix) result(code)
  class(client_type), intent(in) :: self
  logical, intent(in) :: use_prefix
  integer(kind=enum_kind) :: code
  code = c_use_tensor_ensemble_prefix(self%client_ptr, logical(use_prefix, c_bool))
end function use_tensor_ensemble_prefix

function use_dataset_ensemble_prefix(self, use_prefix) result(code)
  class(client_type), intent(in) :: self
  logical, intent(in) :: use_prefix
  integer(kind=enum_kind) :: code
  code = c_use_dataset_ensemble_prefix(self%client_ptr, logical(use_prefix, c_bool))
end function use_dataset_ensemble_prefix

function use_list_ensemble_prefix(self, use_prefix) result(code)
  class(client_type), intent(in) :: self
  logical, intent(in) :: use_prefix
  integer(kind=enum_kind) :: code
  code = c_use_list_ensemble_prefix(self%client_ptr, logical(use_prefix, c_bool))
end function use_list_ensemble_prefix

function to_string(self)
  class(client_type), intent(in) :: self
  character(kind=c_char, len=:), allocatable :: to_string
  to_string = string_of(c_client_to_string(self%client_ptr))
end function to_string

! Writes a description to a unit: standard error by default.
subroutine print_client(self, unit)
  class(client_type), intent(in) :: self
  integer, optional, intent(in) :: unit
  integer :: target_unit
  target_unit = error_unit
  if (present(unit)) target_unit = unit
  write(target_unit, *) self%to_string()
end subroutine print_client

! Makes a tensor in shared memory, to write in place: `ttype` is tensor_dbl and so on. Not in SmartRedis.
function draft_tensor(self, dims, ttype, draft) result(code)
  class(client_type), intent(in) :: self
  integer, dimension(:), intent(in) :: dims
  integer(kind=enum_kind), intent(in) :: ttype
  type(draft_type), intent(out) :: draft
  integer(kind=enum_kind) :: code
  code = c_draft_tensor(self%client_ptr, int(dims, c_size_t), size(dims, kind=c_size_t), ttype, c_fortran_contiguous, &
    draft%draft_ptr, draft%data)
end function draft_tensor

! Publishes a draft without a copy, and ends it: the program must not write it any more.
function put_draft(self, name, draft) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name
  type(draft_type), intent(inout) :: draft
  integer(kind=enum_kind) :: code
  code = c_put_draft(self%client_ptr, name, trimmed(name), draft%draft_ptr)
  if (code == SRNoError) draft%data = c_null_ptr
end function put_draft

function draft_destructor(self) result(code)
  class(draft_type), intent(inout) :: self
  integer(kind=enum_kind) :: code
  code = c_DeallocateDraft(self%draft_ptr)
  self%data = c_null_ptr
end function draft_destructor

! Leases the present tensor of a name, to read in place: c_f_pointer(lease%data, array, lease%dims).
function lease_tensor(self, name, lease) result(code)
  class(client_type), intent(in) :: self
  character(len=*), intent(in) :: name
  type(lease_type), intent(out) :: lease
  integer(kind=enum_kind) :: code
  integer(kind=c_size_t), pointer :: sizes(:)
  integer(kind=c_size_t) :: n_dims
  type(c_ptr) :: dims
  code = c_lease_tensor(self%client_ptr, name, trimmed(name), lease%lease_ptr, lease%data, dims, n_dims, &
    lease%ttype, lease%layout)
  if (code /= SRNoError) return
  call c_f_pointer(dims, sizes, [n_dims])
  lease%dims = int(sizes)
end function lease_tensor

function lease_destructor(self) result(code)
  class(lease_type), intent(inout) :: self
  integer(kind=enum_kind) :: code
  code = c_DeallocateLease(self%lease_ptr)
  self%data = c_null_ptr
end function lease_destructor

#include "client_lists.inc"

#include "client_models.inc"

end module smartredis_client
