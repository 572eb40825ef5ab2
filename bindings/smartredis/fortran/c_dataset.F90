! The C functions of datasets and options.
module smartredis_c_dataset
use iso_c_binding, only : c_ptr, c_char, c_int64_t, c_size_t
use fortran_c_interop, only : enum_kind
use smartredis_c_signatures
implicit none
public

procedure(signature_new), bind(c, name="CDataSet") :: c_CDataSet
procedure(signature_free), bind(c, name="DeallocateDataSet") :: c_DeallocateDataSet
procedure(signature_tensor), bind(c, name="add_tensor") :: c_add_tensor
procedure(signature_two_texts), bind(c, name="add_meta_string") :: c_add_meta_string
procedure(signature_tensor), bind(c, name="unpack_dataset_tensor") :: c_unpack_dataset_tensor
procedure(signature_type), bind(c, name="get_tensor_type") :: c_get_tensor_type
procedure(signature_array), bind(c, name="get_tensor_dims") :: c_get_tensor_dims
procedure(signature_type), bind(c, name="get_metadata_field_type") :: c_get_metadata_field_type
procedure(signature_new), bind(c, name="create_configoptions_from_environment") :: c_create_configoptions_from_environment
procedure(signature_array), bind(c, name="get_string_option") :: c_get_string_option
procedure(signature_exists), bind(c, name="is_configured") :: c_is_configured
procedure(signature_two_texts), bind(c, name="override_string_option") :: c_override_string_option
procedure(signature_string), bind(c, name="dataset_to_string") :: c_dataset_to_string

interface
  function c_add_meta_scalar(dataset, name, name_length, data, type) bind(c, name="add_meta_scalar") &
      result(code)
    import
    type(c_ptr), value :: dataset, data
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(enum_kind), value :: type
    integer(enum_kind) :: code
  end function c_add_meta_scalar

  function c_get_meta_scalars(dataset, name, name_length, length, type, scalar_data) bind(c, &
      name="get_meta_scalars") result(code)
    import
    type(c_ptr), value :: dataset
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_size_t) :: length
    integer(enum_kind) :: type, code
    type(c_ptr) :: scalar_data
  end function c_get_meta_scalars

  function c_get_integer_option(c_cfgopts, option_name, option_name_len, result) bind(c, &
      name="get_integer_option") result(code)
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name
    integer(c_size_t), value :: option_name_len
    integer(c_int64_t) :: result
    integer(enum_kind) :: code
  end function c_get_integer_option

  function c_override_integer_option(c_cfgopts, option_name, option_name_len, value) bind(c, &
      name="override_integer_option") result(code)
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name
    integer(c_size_t), value :: option_name_len
    integer(c_int64_t), value :: value
    integer(enum_kind) :: code
  end function c_override_integer_option
end interface

end module smartredis_c_dataset
