! Every call of the Fortran interface, and its errors. Needs the environment of every_call.cpp.
#define OK(c) call expect(c, SRNoError, __LINE__)
#define FAILS(e, c) call expect(c, e, __LINE__)
#define CHECK(c) call verify(c, __LINE__)
module every_call
use iso_c_binding
use smartredis_client, only : client_type, draft_type, lease_type, enum_kind
use smartredis_configoptions, only : configoptions_type
use smartredis_dataset, only : dataset_type
use smartredis_errors, only : get_last_error, print_last_error
use smartredis_logcontext, only : logcontext_type
use smartredis_logger, only : log_data, log_warning, log_error
implicit none
#include "enum_fortran.inc"

contains

subroutine expect(code, wanted, line)
  integer(enum_kind), intent(in) :: code
  integer, intent(in) :: wanted, line
  if (code == wanted) return
  print *, "every_call.F90:", line, ": code", code, "instead of", wanted
  call print_last_error()
  error stop 1
end subroutine expect

subroutine verify(condition, line)
  logical, intent(in) :: condition
  integer, intent(in) :: line
  if (condition) return
  print *, "every_call.F90:", line, ": wrong"
  error stop 1
end subroutine verify

#define ELEMENT integer(c_int8_t)
#define KIND c_int8_t
#define TENSOR tensor_int8
#define CALLS calls_i8
#include "every_type.inc"

#define ELEMENT integer(c_int16_t)
#define KIND c_int16_t
#define TENSOR tensor_int16
#define CALLS calls_i16
#include "every_type.inc"

#define ELEMENT integer(c_int32_t)
#define KIND c_int32_t
#define TENSOR tensor_int32
#define CALLS calls_i32
#include "every_type.inc"

#define ELEMENT integer(c_int64_t)
#define KIND c_int64_t
#define TENSOR tensor_int64
#define CALLS calls_i64
#include "every_type.inc"

#define ELEMENT real(c_float)
#define KIND c_float
#define TENSOR tensor_flt
#define CALLS calls_r32
#include "every_type.inc"

#define ELEMENT real(c_double)
#define KIND c_double
#define TENSOR tensor_dbl
#define CALLS calls_r64
#include "every_type.inc"

subroutine tensors(client)
  type(client_type), intent(in) :: client
  real(c_double) :: values(3) = [1d0, 2d0, 3d0], got(3)
  real(c_float) :: others(3)
  logical :: exists
  OK(client%put_tensor("a", values, [3]))
  OK(client%copy_tensor("a", "b"))
  OK(client%rename_tensor("b", "c"))
  OK(client%tensor_exists("c", exists))
  CHECK(exists)
  OK(client%delete_tensor("c"))
  OK(client%tensor_exists("c", exists))
  CHECK(.not. exists)
  OK(client%key_exists("one.a", exists))
  CHECK(exists)
  OK(client%poll_key("one.a", 1, 1, exists))
  CHECK(exists)
  OK(client%poll_tensor("a", 1, 1, exists))
  CHECK(exists)
  OK(client%poll_tensor("none", 1, 1, exists))
  CHECK(.not. exists)
  FAILS(SRRuntimeError, client%unpack_tensor("none", got, [3]))
  FAILS(SRRuntimeError, client%unpack_tensor("a", others, [3]))
  FAILS(SRRuntimeError, client%put_tensor("", values, [3]))
  FAILS(SRRuntimeError, client%put_tensor("x", values, [0]))
  FAILS(SRRuntimeError, client%rename_tensor("none", "x"))
  CHECK(index(get_last_error(), "none") > 0)
end subroutine tensors

! Dimensions that the array does not have.
subroutine bad_arguments(client)
  type(client_type), intent(in) :: client
  type(dataset_type) :: dataset
  real(c_double) :: values(4) = [1d0, 2d0, 3d0, 4d0], few(3)
  few = 0
  OK(client%put_tensor("four", values, [4]))
  FAILS(SRRuntimeError, client%put_tensor("x", few, [4]))
  FAILS(SRRuntimeError, client%put_tensor("x", few, [huge(1), huge(1), huge(1)]))
  FAILS(SRRuntimeError, client%unpack_tensor("four", few, [4]))
  CHECK(all(few == 0))
  FAILS(SRBadAllocError, client%put_tensor("x", few, [-1]))
  FAILS(SRRuntimeError, client%put_tensor("x", few, [0]))
  FAILS(SRRuntimeError, client%put_tensor("x", few, [integer ::]))
  FAILS(SRRuntimeError, client%put_tensor(" ", few, [3]))
  ! The address of a part of an array, as some programs give it.
  OK(client%put_tensor("part", values(2), [3]))
  OK(client%unpack_tensor("part", few, [3]))
  CHECK(all(few == values(2:)))
  OK(dataset%initialize("bad"))
  FAILS(SRRuntimeError, dataset%add_tensor("t", few, [4]))
  OK(dataset%add_tensor("t", values, [4]))
  FAILS(SRRuntimeError, dataset%unpack_dataset_tensor("t", few, [4]))
end subroutine bad_arguments

subroutine in_place(client)
  type(client_type), intent(in) :: client
  type(draft_type) :: draft
  type(lease_type) :: lease
  real(c_double), pointer :: field(:, :)
  real(c_double) :: got(2, 3)
  OK(client%draft_tensor([2, 3], tensor_dbl, draft))
  call c_f_pointer(draft%data, field, [2, 3])
  field = reshape([1d0, 2d0, 3d0, 4d0, 5d0, 6d0], [2, 3])
  OK(client%put_draft("draft", draft))
  FAILS(SRParameterError, client%put_draft("draft", draft))
  OK(client%unpack_tensor("draft", got, [2, 3]))
  CHECK(got(2, 3) == 6d0)
  OK(client%lease_tensor("draft", lease))
  CHECK(all(lease%dims == [2, 3]) .and. lease%ttype == tensor_dbl .and. lease%layout == c_fortran_contiguous)
  call c_f_pointer(lease%data, field, lease%dims)
  CHECK(field(1, 3) == 5d0)
  OK(lease%destructor())
  OK(client%draft_tensor([1], tensor_int8, draft))
  OK(draft%destructor())
  FAILS(SRTypeError, client%draft_tensor([1], tensor_invalid, draft))
  FAILS(SRRuntimeError, client%lease_tensor("none", lease))
end subroutine in_place

subroutine datasets(client)
  type(client_type), intent(in) :: client
  type(dataset_type) :: dataset, fetched
  integer(c_int32_t), pointer :: i32(:)
  integer(c_int64_t), pointer :: i64(:)
  real(c_float), pointer :: r32(:)
  real(c_double), pointer :: r64(:)
  integer :: dims(4), length
  integer(enum_kind) :: kind
  logical :: exists
  real(c_double) :: values(2, 1)
  OK(dataset%initialize("set"))
  FAILS(SRRuntimeError, client%put_dataset(dataset))
  OK(dataset%add_meta_scalar("i32", 1_c_int32_t))
  OK(dataset%add_meta_scalar("i32", 2_c_int32_t))
  OK(dataset%add_meta_scalar("i64", 3_c_int64_t))
  OK(dataset%add_meta_scalar("r32", 0.5_c_float))
  OK(dataset%add_meta_scalar("r64", 0.25_c_double))
  OK(dataset%add_meta_string("text", "words"))
  values = 1
  OK(dataset%add_tensor("field", values, [2, 1]))
  OK(client%put_dataset(dataset))
  OK(client%dataset_exists("set", exists))
  CHECK(exists)
  OK(client%poll_dataset("set", 1, 1, exists))
  CHECK(exists)
  OK(client%copy_dataset("set", "copy"))
  OK(client%rename_dataset("copy", "moved"))
  OK(client%get_dataset("moved", fetched))
  OK(fetched%get_meta_scalars("i32", i32))
  OK(fetched%get_meta_scalars("i64", i64))
  OK(fetched%get_meta_scalars("r32", r32))
  OK(fetched%get_meta_scalars("r64", r64))
  CHECK(all(i32 == [1, 2]) .and. i64(1) == 3 .and. r32(1) == 0.5 .and. r64(1) == 0.25)
  FAILS(SRTypeError, fetched%get_meta_scalars("r64", i32))
  FAILS(SRRuntimeError, fetched%get_meta_scalars("none", i32))
  OK(fetched%get_metadata_field_type("text", kind))
  CHECK(kind == meta_string)
  FAILS(SRKeyError, fetched%get_metadata_field_type("none", kind))
  length = 4
  OK(fetched%get_tensor_dims("field", dims, length))
  CHECK(length == 2 .and. all(dims(:2) == [2, 1]))
  length = 1
  FAILS(SRBadAllocError, fetched%get_tensor_dims("field", dims, length))
  CHECK(length == 2)
  FAILS(SRKeyError, fetched%get_tensor_type("none", kind))
  CHECK(index(fetched%to_string(), "moved") > 0)
  call fetched%print_dataset(6)
  CHECK(c_associated(fetched%get_c_pointer()))
  OK(client%delete_dataset("moved"))
  FAILS(SRRuntimeError, client%delete_dataset("moved"))
  FAILS(SRKeyError, client%get_dataset("moved", fetched))
  OK(dataset%destructor())
  OK(dataset%destructor())
end subroutine datasets

subroutine lists(client)
  type(client_type), intent(in) :: client
  type(dataset_type) :: dataset
  type(dataset_type), allocatable :: found(:)
  integer :: length
  logical :: done
  OK(client%get_datasets_from_list("list", found, length))
  CHECK(length == 0 .and. size(found) == 0)
  OK(dataset%initialize("item"))
  OK(dataset%add_meta_string("text", "words"))
  OK(client%put_dataset(dataset))
  OK(client%append_to_list("list", dataset))
  OK(client%append_to_list("list", dataset))
  OK(client%get_list_length("list", length))
  CHECK(length == 2)
  OK(client%get_datasets_from_list("list", found, length))
  CHECK(length == 2 .and. size(found) == 2 .and. index(found(2)%to_string(), "item") > 0)
  OK(client%get_datasets_from_list_range("list", 1, 1, found))
  CHECK(size(found) == 1)
  OK(client%get_datasets_from_list_range("list", -2, -1, found))
  CHECK(size(found) == 2)
  FAILS(SRInternalError, client%get_datasets_from_list_range("list", 0, 2, found))
  FAILS(SRInternalError, client%get_datasets_from_list_range("list", 0, huge(1) - 1, found))
  FAILS(SRInternalError, client%get_datasets_from_list_range("list", -3, -1, found))
  OK(client%poll_list_length("list", 2, 1, 1, done))
  CHECK(done)
  OK(client%poll_list_length_gte("list", 3, 1, 1, done))
  CHECK(.not. done)
  OK(client%poll_list_length_lte("list", 2, 1, 1, done))
  CHECK(done)
  OK(client%copy_list("list", "copy"))
  OK(client%rename_list("copy", "moved"))
  OK(client%delete_list("moved"))
  FAILS(SRRuntimeError, client%copy_list("none", "x"))
  FAILS(SRParameterError, client%rename_list("", "x"))
  FAILS(SRParameterError, client%poll_list_length("list", -1, 1, 1, done))
end subroutine lists

subroutine models(client)
  type(client_type), intent(in) :: client
  character(len=1), parameter :: none(1) = [""]
  character(len=8) :: short
  character(len=3) :: shorter
  character(len=64) :: file
  integer :: unit
  logical :: exists
  call get_environment_variable("SR_LOG_FILE", file)
  file = trim(file) // ".onnx"
  open(newunit=unit, file=file, access="stream", form="unformatted", status="replace")
  write(unit) "onnx"
  close(unit)
  OK(client%set_model("model", "bytes", "ONNX", "CPU", 0, 0, 0, "tag", none, none))
  OK(client%set_model_multigpu("multi", "bytes", "ONNX", 0, 1, 0, 0, 0, "tag", none, none))
  OK(client%set_model_from_file("file", file, "ONNX", "CPU"))
  OK(client%set_model_from_file_multigpu("files", file, "ONNX", 0, 1, batch_size=4, min_batch_size=2, min_batch_timeout=1, tag="t"))
  OK(client%get_model("files", short))
  CHECK(short == "onnx")
  FAILS(SRBadAllocError, client%get_model("files", shorter))
  FAILS(SRRuntimeError, client%get_model("none", short))
  OK(client%model_exists("model", exists))
  CHECK(exists)
  OK(client%poll_model("none", 1, 1, exists))
  CHECK(.not. exists)
  FAILS(SRTimeoutError, client%run_model("model", ["a"], ["b"]))
  FAILS(SRTimeoutError, client%run_model_multigpu("model", ["a ", "aa"], ["b"], 0, 0, 1))
  FAILS(SRParameterError, client%run_model("model", none, ["b"]))
  FAILS(SRRuntimeError, client%set_model("x", "bytes", "TORCH", "CPU", 0, 0, 0, "", none, none))
  FAILS(SRParameterError, client%set_model_from_file("x", file, "ONNX", "CPU", inputs=["in"], outputs=["out"]))
  OK(client%delete_model("model"))
  OK(client%delete_model_multigpu("multi", 0, 1))
  FAILS(SRRuntimeError, client%set_script("s", "CPU", "script"))
  FAILS(SRRuntimeError, client%set_script_multigpu("s", "script", 0, 1))
  FAILS(SRRuntimeError, client%set_script_from_file("s", "CPU", file))
  FAILS(SRRuntimeError, client%set_script_from_file_multigpu("s", file, 0, 1))
  FAILS(SRRuntimeError, client%get_script("s", short))
  FAILS(SRRuntimeError, client%run_script("s", "f", ["a"], ["b"]))
  FAILS(SRRuntimeError, client%run_script_multigpu("s", "f", ["a"], ["b"], 0, 0, 1))
  FAILS(SRRuntimeError, client%delete_script("s"))
  FAILS(SRRuntimeError, client%delete_script_multigpu("s", 0, 1))
  CHECK(index(get_last_error(), "ONNX") > 0)
  open(newunit=unit, file=file)
  close(unit, status="delete")
end subroutine models

subroutine prefixes(client)
  type(client_type), intent(in) :: client
  logical :: exists
  OK(client%set_data_source("two"))
  OK(client%tensor_exists("a", exists))
  CHECK(.not. exists)
  OK(client%set_data_source("one"))
  FAILS(SRRuntimeError, client%set_data_source("three"))
  OK(client%use_tensor_ensemble_prefix(.false.))
  OK(client%tensor_exists("one.a", exists))
  CHECK(exists)
  OK(client%use_tensor_ensemble_prefix(.true.))
  OK(client%use_dataset_ensemble_prefix(.true.))
  OK(client%use_list_ensemble_prefix(.true.))
  OK(client%use_model_ensemble_prefix(.false.))
end subroutine prefixes

subroutine options_and_log(client)
  type(client_type), intent(in) :: client
  type(configoptions_type) :: options
  type(logcontext_type) :: context
  type(dataset_type) :: dataset
  type(client_type) :: other
  integer(c_int64_t) :: number
  character(len=:), allocatable :: text
  logical :: configured
  OK(options%create_configoptions_from_environment(""))
  OK(options%get_string_option("SSKEYIN", text))
  CHECK(text == "one,two")
  OK(options%is_configured("NONE", configured))
  CHECK(.not. configured)
  OK(options%override_integer_option("NONE", 7_c_int64_t))
  OK(options%get_integer_option("NONE", number))
  CHECK(number == 7)
  OK(options%override_string_option("TEXT", "value"))
  OK(options%get_string_option("TEXT", text))
  CHECK(text == "value" .and. c_associated(options%get_c_pointer()))
  FAILS(SRKeyError, options%get_integer_option("OTHER", number))
  OK(other%initialize(options, "with options"))
  OK(other%destructor())
  OK(other%initialize(.false., "deprecated"))
  OK(other%destructor())
  CHECK(.not. other%isinitialized() .and. other%SR_error_parser(SRNoError))
  OK(options%override_string_option("SSDB", "no address"))
  FAILS(SRRuntimeError, other%initialize(options))
  CHECK(.not. client%SR_error_parser(SRNoError) .and. client%SR_error_parser(SRKeyError))

  OK(context%initialize("context"))
  CHECK(c_associated(context%get_c_pointer()))
  OK(dataset%initialize("dataset"))
  call log_data(client, LLInfo, "data")
  call log_data(dataset, LLInfo, "data")
  call log_data(context, LLInfo, "data")
  call log_data("text", LLInfo, "data")
  call log_warning(client, LLInfo, "warning")
  call log_warning(dataset, LLInfo, "warning")
  call log_warning(context, LLInfo, "warning")
  call log_warning("text", LLInfo, "warning")
  call log_error(client, LLInfo, "error")
  call log_error(dataset, LLInfo, "error")
  call log_error(context, LLInfo, "error")
  call log_error("text", LLInfo, "error")
end subroutine options_and_log

end module every_call

program main
use every_call
implicit none
type(client_type) :: client
CHECK(.not. client%isinitialized())
OK(client%initialize("every call"))
CHECK(client%isinitialized() .and. c_associated(client%get_c_pointer()) .and. index(client%to_string(), "every call") > 0)
call client%print_client(6)
call calls_i8(client)
call calls_i16(client)
call calls_i32(client)
call calls_i64(client)
call calls_r32(client)
call calls_r64(client)
call tensors(client)
call bad_arguments(client)
call in_place(client)
call datasets(client)
call lists(client)
call models(client)
call prefixes(client)
call options_and_log(client)
OK(client%destructor())
print '(a)', "every call of Fortran worked"
end program main
