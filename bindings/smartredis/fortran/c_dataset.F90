! The C functions of datasets and options.
module smartredis_c_dataset
use iso_c_binding, only : c_ptr, c_char, c_bool, c_int, c_int64_t, c_size_t
use fortran_c_interop, only : enum_kind
implicit none
public

interface
  integer(enum_kind) function c_CDataSet(name, name_length, new_dataset) bind(c, name="CDataSet")
    import
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: new_dataset
  end function c_CDataSet

  integer(enum_kind) function c_DeallocateDataSet(dataset) bind(c, name="DeallocateDataSet")
    import
    type(c_ptr) :: dataset
  end function c_DeallocateDataSet

  integer(enum_kind) function c_add_tensor(dataset, name, name_length, data, dims, n_dims, type, mem_layout) &
      bind(c, name="add_tensor")
    import
    type(c_ptr), value :: dataset, data
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_dims
    integer(c_size_t), dimension(*) :: dims
    integer(enum_kind), value :: type, mem_layout
  end function c_add_tensor

  integer(enum_kind) function c_add_meta_scalar(dataset, name, name_length, data, type) &
      bind(c, name="add_meta_scalar")
    import
    type(c_ptr), value :: dataset, data
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(enum_kind), value :: type
  end function c_add_meta_scalar

  integer(enum_kind) function c_add_meta_string(dataset, name, name_length, data, data_length) &
      bind(c, name="add_meta_string")
    import
    type(c_ptr), value :: dataset
    character(kind=c_char), dimension(*) :: name, data
    integer(c_size_t), value :: name_length, data_length
  end function c_add_meta_string

  integer(enum_kind) function c_unpack_dataset_tensor(dataset, name, name_length, data, dims, n_dims, type, &
      mem_layout) bind(c, name="unpack_dataset_tensor")
    import
    type(c_ptr), value :: dataset, data
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_dims
    integer(c_size_t), dimension(*) :: dims
    integer(enum_kind), value :: type, mem_layout
  end function c_unpack_dataset_tensor

  integer(enum_kind) function c_get_meta_scalars(dataset, name, name_length, length, type, scalar_data) &
      bind(c, name="get_meta_scalars")
    import
    type(c_ptr), value :: dataset
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_size_t) :: length
    integer(enum_kind) :: type
    type(c_ptr) :: scalar_data
  end function c_get_meta_scalars

  integer(enum_kind) function c_get_tensor_type(dataset, name, name_len, ttype) bind(c, name="get_tensor_type")
    import
    type(c_ptr), value :: dataset
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_len
    integer(enum_kind) :: ttype
  end function c_get_tensor_type

  integer(enum_kind) function c_get_tensor_dims(dataset, name, name_len, dims, ndims) bind(c, name="get_tensor_dims")
    import
    type(c_ptr), value :: dataset
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_len
    type(c_ptr) :: dims
    integer(c_size_t) :: ndims
  end function c_get_tensor_dims

  integer(enum_kind) function c_get_metadata_field_type(dataset, name, name_len, mdtype) &
      bind(c, name="get_metadata_field_type")
    import
    type(c_ptr), value :: dataset
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_len
    integer(enum_kind) :: mdtype
  end function c_get_metadata_field_type

  integer(enum_kind) function c_create_configoptions_from_environment(db_suffix, db_suffix_length, new_configoptions) &
      bind(c, name="create_configoptions_from_environment")
    import
    character(kind=c_char), dimension(*) :: db_suffix
    integer(c_size_t), value :: db_suffix_length
    type(c_ptr) :: new_configoptions
  end function c_create_configoptions_from_environment

  integer(enum_kind) function c_get_integer_option(c_cfgopts, option_name, option_name_len, result) &
      bind(c, name="get_integer_option")
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name
    integer(c_size_t), value :: option_name_len
    integer(c_int64_t) :: result
  end function c_get_integer_option

  integer(enum_kind) function c_get_string_option(c_cfgopts, option_name, option_name_len, result, result_len) &
      bind(c, name="get_string_option")
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name
    integer(c_size_t), value :: option_name_len
    type(c_ptr) :: result
    integer(c_size_t) :: result_len
  end function c_get_string_option

  integer(enum_kind) function c_is_configured(c_cfgopts, option_name, option_name_len, cfg_result) &
      bind(c, name="is_configured")
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name
    integer(c_size_t), value :: option_name_len
    logical(c_bool) :: cfg_result
  end function c_is_configured

  integer(enum_kind) function c_override_integer_option(c_cfgopts, option_name, option_name_len, value) &
      bind(c, name="override_integer_option")
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name
    integer(c_size_t), value :: option_name_len
    integer(c_int64_t), value :: value
  end function c_override_integer_option

  integer(enum_kind) function c_override_string_option(c_cfgopts, option_name, option_name_len, value, value_len) &
      bind(c, name="override_string_option")
    import
    type(c_ptr), value :: c_cfgopts
    character(kind=c_char), dimension(*) :: option_name, value
    integer(c_size_t), value :: option_name_len, value_len
  end function c_override_string_option

  function c_dataset_to_string(dataset) bind(c, name="dataset_to_string") result(text)
    import
    type(c_ptr), value :: dataset
    type(c_ptr) :: text
  end function c_dataset_to_string
end interface

end module smartredis_c_dataset
