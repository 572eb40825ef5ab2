! The C functions of models and scripts.
module smartredis_c_models
use iso_c_binding, only : c_ptr, c_char, c_int, c_size_t
use fortran_c_interop, only : enum_kind
use smartredis_c_signatures
implicit none
public

procedure(signature_set_model), bind(c, name="set_model_from_file") :: c_set_model_from_file
procedure(signature_set_model_multigpu), bind(c, name="set_model_from_file_multigpu") :: c_set_model_from_file_multigpu
procedure(signature_set_model), bind(c, name="set_model") :: c_set_model
procedure(signature_set_model_multigpu), bind(c, name="set_model_multigpu") :: c_set_model_multigpu
procedure(signature_name), bind(c, name="delete_model") :: c_delete_model
procedure(signature_name_multigpu), bind(c, name="delete_model_multigpu") :: c_delete_model_multigpu
procedure(signature_set_script), bind(c, name="set_script_from_file") :: c_set_script_from_file
procedure(signature_set_script_multigpu), bind(c, name="set_script_from_file_multigpu") :: c_set_script_from_file_multigpu
procedure(signature_set_script), bind(c, name="set_script") :: c_set_script
procedure(signature_set_script_multigpu), bind(c, name="set_script_multigpu") :: c_set_script_multigpu
procedure(signature_array), bind(c, name="get_script") :: c_get_script
procedure(signature_name), bind(c, name="delete_script") :: c_delete_script
procedure(signature_name_multigpu), bind(c, name="delete_script_multigpu") :: c_delete_script_multigpu

interface
  function c_get_model(c_client, name, name_length, model_length, model) bind(c, name="get_model") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_size_t) :: model_length
    type(c_ptr) :: model
    integer(enum_kind) :: code
  end function c_get_model

  function c_run_model(c_client, name, name_length, inputs, input_lengths, n_inputs, outputs, output_lengths, &
      n_outputs) bind(c, name="run_model") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(enum_kind) :: code
  end function c_run_model

  function c_run_model_multigpu(c_client, name, name_length, inputs, input_lengths, n_inputs, outputs, &
      output_lengths, n_outputs, offset, first_gpu, num_gpus) bind(c, name="run_model_multigpu") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(c_int), value :: offset, first_gpu, num_gpus
    integer(enum_kind) :: code
  end function c_run_model_multigpu

  function c_run_script(c_client, name, name_length, func, function_length, inputs, input_lengths, n_inputs, &
      outputs, output_lengths, n_outputs) bind(c, name="run_script") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, func
    integer(c_size_t), value :: name_length, function_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(enum_kind) :: code
  end function c_run_script

  function c_run_script_multigpu(c_client, name, name_length, func, function_length, inputs, input_lengths, &
      n_inputs, outputs, output_lengths, n_outputs, offset, first_gpu, num_gpus) bind(c, name="run_script_multigpu") &
      result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, func
    integer(c_size_t), value :: name_length, function_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(c_int), value :: offset, first_gpu, num_gpus
    integer(enum_kind) :: code
  end function c_run_script_multigpu
end interface

end module smartredis_c_models
